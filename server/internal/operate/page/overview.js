// The first view: whether all is well, and if not, where the problem is.

import { bars, dot, each, el, panel, setClass, setText, show, table } from './dom.js';
import { count, plural, rate, share, size, title, took } from './format.js';
import { spark } from './plots.js';
import { applications } from './applications.js';
import { containers } from './containers.js';
import { pipelines } from './pipelines.js';

export function overview(page) {
  const tiles = ['Requests', 'In time', 'Waiting', 'No result', 'Payload memory', 'Containers'].map(tile);
  const [requests, inTime, waiting, refused, memory, sessions] = tiles;
  const line = spark(0);
  requests.append(line);
  const meter = el('span', { class: 'meter' }, el('span'));
  memory.append(meter);
  const warnings = el('ul', { class: 'warnings', 'aria-label': 'Warnings' });
  const models = modelTable();
  const reasons = bars('Requests without a result, by reason', 'Every request had a result.');
  const clients = table('Clients over a quota', [
    { name: 'Client', head: true, cell: (c) => c.name },
    { name: 'Quota', cell: (c) => c.quota },
    { name: 'Limit', class: 'number', cell: (c) => count(c.limit) },
    { name: 'Refused', class: 'number', cell: (c) => count(c.refused) },
  ], (c) => `${c.name} ${c.quota}`, 'No client was over a quota in the last minute.');
  const seen = table('Streams', [
    { name: 'Stream', head: true, cell: (s) => (s.connection ? `connection from ${s.name}` : s.name || 'any') },
    { name: 'Of', cell: (s) => s.model },
    { name: 'From', class: 'wide', cell: (s) => (s.known ? [!s.connection && s.client, s.identity].filter(Boolean).join(', ') || '–' : 'nobody') },
    { name: 'Newest answer', class: 'number', cell: (s) => (s.known ? (s.age_seconds === null ? 'none' : `${took(s.age_seconds)} old`) : 'no frame has come') },
    { name: 'Waited for by', cell: (s) => (s.waiting ? `${count(s.waiting)}: ${s.askers.join(', ')}` : '–') },
  ], (s) => JSON.stringify([s.model, s.name, s.connection, s.client, s.identity]), '');
  const streams = panel('Streams', seen);
  const apps = applications(page), lines = pipelines(), boxes = containers(page);
  const routes = table('Routes', [
    { name: 'Route', head: true, cell: (r) => r.name },
    { name: 'State', node: () => dot((r) => (r.ready ? 'good' : 'bad'), (r) => (r.ready ? 'ready' : 'not ready')) },
    { name: 'Stands for', cell: (r) => r.to },
  ], (r) => r.name, '');
  const routed = panel('Routes', routes);
  const node = el('div', { class: 'view' },
    el('h2', { class: 'hidden' }, 'Overview'), el('div', { class: 'tiles' }, ...tiles), warnings,
    panel('Models', models), lines, streams, routed, apps, boxes,
    el('div', { class: 'columns' }, panel('Without a result, last minute', reasons), panel('Over a quota', clients)));

  node.update = ({ status, batches, history, now }) => {
    if (!status) return;
    let all = 0, judged = 0, hits = 0, failed = 0;
    for (const m of status.models) {
      if (!m.version) continue; // requests to an application or a pipeline count at its models
      const one = now?.get(`${m.name}/${m.version}`);
      all += one?.requests ?? 0;
      judged += one?.judged ?? 0;
      hits += (one?.inTime ?? 0) * (one?.judged ?? 0);
      failed += one?.failed ?? 0;
    }
    requests.say(rate(all), 'a second');
    line.fill([history.times, total(history)]);
    inTime.say(judged ? share(hits / judged) : '–', judged ? 'of the answers, within their SLO; what clients withdrew or got wrong does not count' : 'no requests', judged && hits / judged < 0.9 ? 'bad' : '');
    waiting.say(count(status.queue.rows), status.queue.rows ? `rows, the oldest for ${took(status.queue.oldest_row_seconds)}` : 'rows', status.queue.oldest_row_seconds > 1 ? 'warn' : '');
    refused.say(rate(failed), 'a second', failed > 0 ? 'warn' : '');
    const used = status.payload_bytes.used / status.payload_bytes.limit;
    memory.say(size(status.payload_bytes.used), `of ${size(status.payload_bytes.limit)}`, used > 0.8 ? 'bad' : '');
    meter.firstChild.style.width = `${100 * used}%`;
    const sick = status.sessions.filter((s) => s.state !== 'serving').length;
    sessions.say(count(status.sessions.length), sick ? `${count(sick)} not serving` : 'connected', sick ? 'bad' : '');
    show(warnings, status.warnings.length > 0);
    each(warnings, status.warnings, (w) => w, (w) => el('li', {}, w));
    models.fill(status.models.filter((m) => m.version).map((m) => ({ ...m, now: now?.get(`${m.name}/${m.version}`), batch: batches?.models.find((b) => b.name === m.name && b.version === m.version) })));
    show(streams, status.streams.length > 0);
    seen.fill(status.streams);
    show(routed, status.routes.length > 0);
    routes.fill(status.routes);
    reasons.fill(withoutResult((batches?.models ?? []).filter((b) => !b.ago_seconds)));
    clients.fill(status.clients.flatMap((c) => c.quotas.filter((q) => q.refused && q.refused_seconds <= 60).map((q) => ({ name: c.name, ...q }))));
    lines.update(page.state);
    apps.update(page.state);
    boxes.update(page.state);
  };
  node.close = () => {
    line.close();
    apps.close();
  };
  return node;
}

function tile(name) {
  const value = el('strong', {}, '–'), note = el('span', { class: 'quiet' });
  const node = el('div', { class: 'tile' }, el('span', { class: 'label' }, name), value, note);
  node.say = (text, more, kind = '') => {
    setText(value, text);
    setText(note, more);
    setClass(node, `tile ${kind}`);
  };
  return node;
}

// total is the rate of requests to all models together.
function total(history) {
  const sum = history.times.map(() => null);
  for (const [key, track] of history.tracks) {
    if (key.endsWith('/')) continue;
    track.requests.forEach((v, i) => {
      if (v !== null) sum[i] = (sum[i] ?? 0) + v;
    });
  }
  return sum;
}

// withoutResult counts requests by the reason why they had no result. Those that their client
// withdrew, with a newer frame or by cancelling, come last: they are no failures.
export function withoutResult(models) {
  const all = {}, of = {};
  for (const m of models) {
    for (const [reason, n] of Object.entries(m.outcomes)) {
      if (reason === 'ok' || n === 0) continue;
      all[reason] = (all[reason] ?? 0) + n;
      (of[reason] ??= []).push(title(m));
    }
  }
  const asked = (name) => name === 'superseded' || name.startsWith('canceled');
  return Object.entries(all).sort((a, b) => asked(a[0]) - asked(b[0]) || b[1] - a[1])
    .map(([name, value]) => ({ name, value, text: models.length > 1 ? `${count(value)} · ${of[name].join(', ')}` : count(value), kind: asked(name) ? 'off' : 'bad' }));
}

// condition is the colour of a model, and a word for it.
export function condition(m) {
  if (m.replicas === 0) return m.absence ? ['off', m.absence] : ['bad', 'no replica'];
  if (m.failing === m.replicas) return ['bad', 'failing'];
  if (m.failing > 0) return ['warn', `${m.failing} of ${m.replicas} failing`];
  return ['good', plural(m.replicas, 'replica')];
}

// most is the most frequent reason why batches were not larger.
export function most(batch) {
  const [reason, n] = Object.entries(batch?.closed ?? {}).sort((a, b) => b[1] - a[1])[0] ?? [];
  return n ? reason : '–';
}

function modelTable() {
  return table('Models', [
    { name: 'Model', head: true, node: (m) => el('a', { href: `#/model/${encodeURIComponent(m.name)}/${encodeURIComponent(m.version)}` }, title(m)) },
    { name: 'State', node: () => dot((m) => condition(m)[0], (m) => condition(m)[1]) },
    { name: 'Waiting', class: 'number', cell: (m) => (m.queue_rows ? `${count(m.queue_rows)} · ${took(m.oldest_row_seconds)}` : '0') },
    { name: 'Requests/s', class: 'number', cell: (m) => rate(m.now?.requests) },
    { name: 'Rows/s', class: 'number wide', cell: (m) => rate(m.batch && (m.batch.ago_seconds ? 0 : m.batch.rows / Math.max(m.batch.span_seconds, 1))) },
    { name: 'Failed/s', class: 'number wide', cell: (m) => rate(m.now?.failed) },
    { name: 'p50', class: 'number', cell: (m) => took(m.now?.p50) },
    { name: 'p99', class: 'number', cell: (m) => took(m.now?.p99) },
    { name: 'In time', class: 'number', cell: (m) => share(m.now?.inTime) },
    { name: 'Batch', class: 'number wide', cell: (m) => (m.batch?.batches ? `${rate(m.batch.rows / m.batch.batches)} rows` : '–') },
    { name: 'Mostly closed by', class: 'wide', cell: (m) => most(m.batch) },
    { name: 'Streams', class: 'number wide', cell: (m) => (m.streams ? `${count(m.streams)} · ${took(m.frame_age_seconds)}` : '–') },
  ], title, 'No container has connected yet.');
}
