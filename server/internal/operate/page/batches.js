// The batches of a model: how large they are, and why each was closed.

import { bars, el, setText, show } from './dom.js';
import { count, plural, rate, share } from './format.js';
import { fold } from './fold.js';
import { plot } from './plots.js';

export function batches() {
  const sizes = plot({
    title: 'Rows of the last batches, and why each was closed',
    height: 200,
    values: false,
    y: { value: rate, range: (_, low, high) => [0, Math.max(2, high * 1.1)] },
    series: [],
    empty: 'No batches yet.',
  });
  const closed = bars('Batches closed because', 'No batches yet.'),
    waits = el('p', { class: 'quiet' }),
    when = el('span', { class: 'quiet' });
  const node = fold(
    'Batches',
    false,
    el('div', { class: 'columns' }, sizes, el('div', {}, el('h3', {}, 'Closed because ', when), closed, waits)),
  );
  node.update = (recent, time) => {
    setText(when, time);
    const list = Object.entries(recent.closed)
      .filter(([, n]) => n)
      .sort((a, b) => b[1] - a[1]);
    closed.fill(
      list.map(([reason, n]) => ({ name: reason, value: n, text: `${share(n / recent.batches)} · ${count(n)}` })),
    );
    setText(waits, waited(recent));
    show(waits, recent.waits > 0);
    node.say(
      recent.batches
        ? `${rate(recent.rows / recent.batches)} rows on average; closed because: ${
            list
              .slice(0, 2)
              .map(([r]) => r)
              .join(', ') || '–'
          }`
        : 'none',
    );
  };
  // fill shows the last batches, a series for each reason.
  node.fill = (sent) => {
    const reasons = [...new Set(sent.map((b) => b.closed))].sort();
    const columns = [
      sent.map((b) => b.at),
      ...reasons.map((reason) => sent.map((b) => (b.closed === reason ? b.rows : null))),
    ];
    sizes.fill(
      columns,
      reasons.map((label, n) => ({ label, n, width: 0, points: true })),
    );
  };
  node.close = () => sizes.close();
  return node;
}

// waited says what waits for clients that ask again on each answer brought.
function waited(recent) {
  const vain = recent.waits_in_vain ? `, ${share(recent.waits_in_vain / recent.waits)} of them in vain` : '';
  const last = recent.last_wait ? ` The last one ${recent.last_wait}.` : '';
  return `${plural(recent.waits, 'wait')} for clients that ask again on each answer brought ${plural(recent.waited_rows, 'row')}${vain}.${last}`;
}
