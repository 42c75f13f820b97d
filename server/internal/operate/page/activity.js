// The audit of operators' actions, and the server's log.

import { dot, el, panel, table } from './dom.js';
import { moment } from './format.js';

const levels = { INFO: 'off', WARN: 'warn', ERROR: 'bad' };

export function activity() {
  const audit = table('Audit', [
    { name: 'Time', cell: (e) => moment(e.at) },
    { name: 'Who', head: true, cell: (e) => e.container || e.identity || e.address || 'the server' },
    { name: 'Door', class: 'wide', cell: (e) => e.door },
    { name: 'What', node: () => dot((e) => (e.refused || e.error ? 'bad' : 'good'), (e) => `${e.refused ? 'refused: ' : ''}${e.action} ${e.what}${e.name ? ` ${e.name}` : ''}`) },
    { name: 'Detail', class: 'detail', cell: (e) => e.error || [e.before, e.after].filter(Boolean).join(' → ') },
  ], (e) => e.key, 'Nothing was changed or refused since the server started.');
  const log = table('Log', [
    { name: 'Time', cell: (e) => moment(e.at) },
    { name: 'Level', node: () => dot((e) => levels[e.level] ?? 'off', (e) => e.level.toLowerCase()) },
    { name: 'Message', head: true, cell: (e) => e.message },
    { name: 'Detail', class: 'detail', cell: (e) => e.attributes.map((a) => `${a.key}=${a.value}`).join('  ') },
  ], (e) => e.id, 'The log is empty.');
  const node = el('div', { class: 'view' }, el('h2', { class: 'hidden' }, 'Activity'), panel('Audit: what was changed or refused', audit), panel('Log', log));
  node.update = ({ audit: entries, logs }) => {
    if (entries) audit.fill(entries.entries.map((e) => ({ ...e, key: `${e.at} ${e.action} ${e.what} ${e.name}` })).reverse());
    if (logs) log.fill(logs.entries.toReversed());
  };
  node.close = () => {};
  return node;
}
