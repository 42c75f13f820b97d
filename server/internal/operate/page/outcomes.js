// How requests ended that have no result. Those that their client withdrew, with a newer frame of
// the stream or by cancelling, are no failures.

import { bars, el, show } from './dom.js';
import { count, listed, title } from './format.js';

const withdrawn = (reason) => reason === 'superseded' || reason.startsWith('canceled');

// without counts requests without a result by reason: [those that failed, those withdrawn].
export function without(models) {
  const all = {},
    of = {};
  for (const m of models) {
    for (const [reason, n] of Object.entries(m.outcomes)) {
      if (reason === 'ok' || n === 0) continue;
      all[reason] = (all[reason] ?? 0) + n;
      (of[reason] ??= []).push(title(m));
    }
  }
  const list = Object.entries(all)
    .sort((a, b) => b[1] - a[1])
    .map(([name, value]) => ({
      name,
      value,
      text: models.length > 1 ? `${count(value)} · ${listed(of[name])}` : count(value),
      kind: withdrawn(name) ? 'off' : 'bad',
    }));
  return [list.filter((one) => one.kind === 'bad'), list.filter((one) => one.kind === 'off')];
}

// outcomes shows both, each in its place.
export function outcomes() {
  const failed = bars('Failed requests, by reason', 'No request has failed.');
  const taken = bars('Requests that their client withdrew', '');
  const rest = el('div', {}, el('h3', {}, 'Withdrawn by the client: no failures'), taken);
  const node = el('div', {}, failed, rest);
  node.fill = (models) => {
    const [bad, off] = without(models);
    failed.fill(bad);
    show(rest, off.length > 0);
    taken.fill(off);
    return bad.reduce((sum, one) => sum + one.value, 0);
  };
  return node;
}
