// The audit of operators' actions, and the server's log.

import { dot, el } from './dom.js';
import { fold } from './fold.js';
import { moment, plural, words } from './format.js';
import { plain, sentence } from './sentences.js';
import { table } from './table.js';

const levels = { INFO: 'off', WARN: 'warn', ERROR: 'bad' };

export function activity() {
  const audit = table(
    'Audit',
    [
      { name: 'Time', cell: (e) => moment(e.at) },
      {
        name: 'What happened',
        head: true,
        class: 'sentence',
        node: () => dot((e) => (e.refused || e.error ? 'bad' : 'good'), sentence),
      },
      { name: 'From', cell: (e) => [e.address, e.door].filter(Boolean).join(', through ') },
    ],
    (e) => e.key,
    'Nothing was changed or refused since the server started.',
  );
  const log = table(
    'Log',
    [
      { name: 'Time', cell: (e) => moment(e.at) },
      {
        name: 'Level',
        node: () =>
          dot(
            (e) => levels[e.level] ?? 'off',
            (e) => e.level.toLowerCase(),
          ),
      },
      { name: 'Message', head: true, class: 'sentence', cell: (e) => e.message },
      {
        name: 'Detail',
        class: 'detail',
        cell: (e) => e.attributes.map((a) => `${words(a.key)} ${plain(a.value)}`).join(' · '),
      },
    ],
    (e) => e.id,
    'The log is empty.',
  );
  const done = fold('Audit', true, audit),
    said = fold('Log', true, log);
  const node = el('div', { class: 'view' }, el('h2', { class: 'hidden' }, 'Activity'), done, said);
  node.update = ({ audit: entries, logs }) => {
    if (entries) {
      const all = entries.entries.map((e) => ({ ...e, key: `${e.at} ${e.action} ${e.what} ${e.name}` })).reverse();
      const bad = all.filter((e) => e.refused || e.error).length;
      audit.fill(all);
      done.say(
        `what was changed or refused${bad ? `: ${plural(bad, 'refusal')} or failures among the last ${all.length}` : ''}`,
      );
    }
    if (logs) {
      // What the audit has is not shown twice.
      const lines = logs.entries.filter((e) => !e.message.startsWith('audit: ')).reverse();
      log.fill(lines);
      said.say(`the last ${plural(lines.length, 'line')}`);
    }
  };
  node.close = () => {};
  return node;
}
