// How long a replica's batches take by their size.

import { rate, took } from './format.js';
import { plot } from './plots.js';

// profile plots how long a replica's batches take by their size: the measurements, and the curve
// used for planning.
export function profile(r) {
  const node = plot({
    title: `Latency profile of ${r.name}`,
    height: 200,
    values: false,
    x: { value: (v) => rate(v), range: (_, low, high) => [0, Math.max(2, high * 1.05)] },
    y: { value: took, range: (_, low, high) => [0, high * 1.1] },
    series: [],
    empty: 'Nothing was measured yet.',
  });
  node.follow = (now) => {
    if (!now) return;
    const rows = [...new Set([...now.measured, ...now.fitted].map((p) => p.rows))].sort((a, b) => a - b);
    // Several batches of a size were measured: each gets a place of its own.
    const points = [];
    for (const n of rows) {
      const fitted = now.fitted.find((p) => p.rows === n);
      points.push([n, null, fitted?.typical_seconds ?? null, fitted?.planned_seconds ?? null]);
      for (const m of now.measured) if (m.rows === n) points.push([n, m.seconds, null, null]);
    }
    node.fill(
      [0, 1, 2, 3].map((i) => points.map((p) => p[i])),
      [
        { label: 'measured', n: 0, width: 0, points: true },
        { label: 'fitted, typical', n: 2, spanGaps: true },
        { label: 'planned with', n: 3, dash: [5, 4], spanGaps: true },
      ],
    );
    node.say(
      `Latency profile of ${now.name}: ${now.fitted.map((p) => `${p.rows} rows ${took(p.typical_seconds)}`).join(', ')}`,
    );
  };
  return node;
}
