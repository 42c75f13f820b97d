// The table of models: it can be searched, sorted and filtered, and what was chosen stays.

import { dot, el, setText } from './dom.js';
import { count, perSecond, plural, rate, share, title, took } from './format.js';
import { table } from './table.js';

const most = 100; // rows at a time
const key = 'shivad.models';

// condition is the colour of a model, and a word for it.
export function condition(m) {
  if (m.replicas === 0) return m.absence ? ['off', m.absence] : ['bad', 'no replica'];
  if (m.failing === m.replicas) return ['bad', 'failing'];
  if (m.failing > 0) return ['warn', `${m.failing} of ${m.replicas} failing`];
  return ['good', plural(m.replicas, 'replica')];
}

// retired reports whether another version answers in a version's place.
export const retired = (m) => m.replicas === 0 && !!m.absence && m.absence.startsWith('replaced');

const filters = {
  all: ['All', () => true],
  ill: ['Not well', (m) => ['bad', 'warn'].includes(condition(m)[0]) || m.now?.inTime < 0.9 || m.now?.failed > 0],
  busy: ['With requests', (m) => m.now?.requests > 0],
  serving: ['Serving', (m) => m.replicas > 0],
  retired: ['Retired', retired],
};

// closed is the most frequent reason why batches were not larger.
function closed(batch) {
  const [reason, n] = Object.entries(batch?.closed ?? {}).sort((a, b) => b[1] - a[1])[0] ?? [];
  return n ? reason : null;
}

const rows = (m) => m.batch && (m.batch.ago_seconds ? 0 : m.batch.rows / Math.max(m.batch.span_seconds, 1));
const each = (m) => (m.batch?.batches ? m.batch.rows / m.batch.batches : null);

const columns = [
  { name: 'Model', head: true, by: title, node: name, row: (m) => (retired(m) ? 'retired' : '') },
  { name: 'p99', class: 'number', by: (m) => m.now?.p99, cell: (m) => took(m.now?.p99) },
  { name: 'In time', class: 'number', by: (m) => m.now?.inTime, cell: (m) => share(m.now?.inTime) },
  { name: 'Requests', class: 'number', by: (m) => m.now?.requests, cell: (m) => perSecond(m.now?.requests) },
  { name: 'Failed', class: 'number', by: (m) => m.now?.failed, cell: (m) => perSecond(m.now?.failed) },
  {
    name: 'Superseded',
    class: 'number',
    by: (m) => m.now?.superseded,
    cell: (m) => (m.streams || m.now?.superseded ? perSecond(m.now?.superseded) : '–'),
  },
  {
    name: 'Waiting',
    class: 'number',
    by: (m) => m.queue_rows,
    cell: (m) => (m.queue_rows ? `${count(m.queue_rows)} · ${took(m.oldest_row_seconds)}` : '0'),
  },
  { name: 'p50', class: 'number', by: (m) => m.now?.p50, cell: (m) => took(m.now?.p50) },
  { name: 'Rows', class: 'number', by: rows, cell: (m) => perSecond(rows(m)) },
  { name: 'Batch', class: 'number', by: each, cell: (m) => (each(m) === null ? '–' : `${rate(each(m))} rows`) },
  { name: 'Closed because', by: (m) => closed(m.batch), cell: (m) => closed(m.batch) ?? '–' },
  {
    name: 'Streams',
    class: 'number',
    by: (m) => m.streams,
    cell: (m) => (m.streams ? `${count(m.streams)} · ${took(m.frame_age_seconds)}` : '–'),
  },
];

function name(first) {
  const state = dot(
    (m) => condition(m)[0],
    (m) => condition(m)[1],
  );
  const node = el(
    'div',
    { class: 'name' },
    el('a', { href: `#/model/${encodeURIComponent(first.name)}/${encodeURIComponent(first.version)}` }, title(first)),
    state,
  );
  node.update = (m) => state.update(m);
  return node;
}

function read() {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? {};
  } catch {
    return {}; // it is not ours
  }
}

export function models() {
  const kept = read();
  const order = columns.some((c) => c.name === kept.column)
    ? { column: kept.column, down: !!kept.down }
    : { column: 'Model', down: false };
  const search = el('input', {
    type: 'search',
    'aria-label': 'Search models',
    placeholder: 'Search models',
    autocomplete: 'off',
    spellcheck: 'false',
  });
  const filter = el(
    'select',
    { 'aria-label': 'Which models' },
    ...Object.entries(filters).map(([value, [text]]) => el('option', { value }, text)),
  );
  const shown = el('span', { class: 'quiet', role: 'status' });
  filter.value = filters[kept.filter] ? kept.filter : 'all';
  let all = [];
  const keep = () => localStorage.setItem(key, JSON.stringify({ ...order, filter: filter.value }));
  const list = table('Models', columns, title, 'No model is like this.', order, keep);
  const look = () => {
    const text = search.value.trim().toLowerCase();
    const found = all.filter((m) => title(m).toLowerCase().includes(text) && filters[filter.value][1](m));
    list.fill(found, most);
    const less =
      found.length > most
        ? `the first ${count(most)} of ${count(found.length)}`
        : found.length < all.length
          ? `${count(found.length)} of ${plural(all.length, 'model')}`
          : '';
    setText(shown, less);
  };
  search.addEventListener('input', look);
  filter.addEventListener('change', () => {
    keep();
    look();
  });
  const tools = el('div', { class: 'tools' }, search, filter, shown);
  const nothing = el(
    'p',
    { class: 'quiet nothing' },
    'No container has connected yet. ',
    el('a', { href: '/manual/tutorial' }, 'The tutorial'),
    ' begins with a model file.',
  );
  const node = el('div', {}, nothing, tools, list);
  node.fill = (now) => {
    all = now;
    nothing.hidden = now.length > 0;
    tools.hidden = list.hidden = now.length === 0;
    look();
  };
  return node;
}
