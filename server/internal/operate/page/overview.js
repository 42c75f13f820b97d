// The first view: the verdict and the figures that matter; the rest folds.

import { dot, el, setClass, setText, show } from './dom.js';
import { byId, count, id, lately, perSecond, plural, share, size, title, took } from './format.js';
import { spark } from './plots.js';
import { fold } from './fold.js';
import { table } from './table.js';
import { verdict } from './verdict.js';
import { models as modelTable } from './models.js';
import { outcomes } from './outcomes.js';
import { applications } from './applications.js';
import { containers } from './containers.js';
import { pipelines } from './pipelines.js';

export function overview(page) {
  const first = verdict(),
    figures = tiles();
  const models = modelTable(),
    ofModels = fold('Models', true, models);
  const losses = outcomes(),
    without = fold('Without a result', false, losses);
  const quotas = overQuota(),
    streams = streamPanel(),
    routed = routePanel();
  const apps = applications(page),
    lines = pipelines(),
    boxes = containers(page);
  const node = el(
    'div',
    { class: 'view' },
    first,
    figures,
    ofModels,
    lines,
    streams,
    routed,
    apps,
    boxes,
    without,
    quotas,
  );

  node.update = (state) => {
    const { status, batches, now, minute } = state;
    if (!status) return;
    first.update(state);
    figures.update(state);
    const sent = byId(batches?.models);
    const list = status.models
      .filter((m) => m.version)
      .map((m) => ({
        ...m,
        now: now?.get(id(m)),
        batch: sent.get(id(m)),
      }));
    models.fill(list);
    ofModels.say(`${plural(list.length, 'version')}${minute.span ? `, figures of ${lately(minute)}` : ''}`);
    const failed = losses.fill((batches?.models ?? []).filter((b) => !b.ago_seconds));
    without.say(
      failed ? `${plural(failed, 'request')} failed in the last minute` : 'no failure in the last minute',
      failed ? 'warn' : '',
    );
    for (const part of [streams, routed, quotas]) part.update(status);
    for (const part of [lines, apps, boxes]) part.update(state);
  };
  node.close = () => {
    figures.close();
    apps.close();
  };
  return node;
}

// streamPanel shows the streams whose newest answers are asked for; it is there if there are any.
function streamPanel() {
  const seen = table(
    'Streams',
    [
      { name: 'Stream', head: true, cell: (s) => (s.connection ? `connection from ${s.name}` : s.name || 'any') },
      { name: 'Of', cell: (s) => s.model },
      {
        name: 'Newest answer',
        class: 'number',
        cell: (s) => (s.known ? (s.age_seconds === null ? 'none' : `${took(s.age_seconds)} old`) : 'no frame has come'),
      },
      { name: 'Waited for by', cell: (s) => (s.waiting ? `${count(s.waiting)}: ${s.askers.join(', ')}` : '–') },
      {
        name: 'From',
        cell: (s) => (s.known ? [!s.connection && s.client, s.identity].filter(Boolean).join(', ') || '–' : 'nobody'),
      },
    ],
    (s) => JSON.stringify([s.model, s.name, s.connection, s.client, s.identity]),
    '',
  );
  const node = fold('Streams', false, seen);
  node.update = (status) => {
    show(node, status.streams.length > 0);
    seen.fill(status.streams);
    node.say(plural(status.streams.length, 'stream'));
  };
  return node;
}

function routePanel() {
  const routes = table(
    'Routes',
    [
      { name: 'Route', head: true, cell: (r) => r.name },
      {
        name: 'State',
        node: () =>
          dot(
            (r) => (r.ready ? 'good' : 'bad'),
            (r) => (r.ready ? 'ready' : 'not ready'),
          ),
      },
      { name: 'Stands for', cell: (r) => r.to },
    ],
    (r) => r.name,
    '',
  );
  const node = fold('Routes', false, routes);
  node.update = (status) => {
    show(node, status.routes.length > 0);
    routes.fill(status.routes);
    const lost = status.routes.filter((r) => !r.ready).length;
    node.say(
      lost ? `${count(lost)} of ${count(status.routes.length)} not ready` : plural(status.routes.length, 'route'),
      lost ? 'bad' : '',
    );
  };
  return node;
}

function overQuota() {
  const clients = table(
    'Clients over a quota',
    [
      { name: 'Client', head: true, cell: (c) => c.name },
      { name: 'Quota', cell: (c) => c.quota },
      { name: 'Limit', class: 'number', cell: (c) => count(c.limit) },
      { name: 'Refused', class: 'number', cell: (c) => count(c.refused) },
    ],
    (c) => `${c.name} ${c.quota}`,
    'No client was over a quota in the last minute.',
  );
  const node = fold('Over a quota', false, clients);
  node.update = (status) => {
    const over = status.clients.flatMap((c) =>
      c.quotas.filter((q) => q.refused && q.refused_seconds <= 60).map((q) => ({ ...q, name: c.name })),
    );
    clients.fill(over);
    node.say(over.length ? plural(over.length, 'quota') : 'nobody', over.length ? 'warn' : '');
  };
  return node;
}

// tiles are the figures of the whole server; how fast and how often in time come first.
function tiles() {
  const all = ['In time', 'p99', 'Requests', 'Failed', 'Waiting', 'Payload memory'].map(tile);
  const [inTime, latency, requests, failures, waiting, memory] = all;
  const line = spark(0);
  requests.append(line);
  const meter = el('span', { class: 'meter' }, el('span'));
  memory.append(meter);
  const node = el('div', { class: 'tiles' }, ...all);
  node.update = ({ status, history, now }) => {
    let rate = 0,
      judged = 0,
      hits = 0,
      failed = 0,
      slowest = null;
    for (const m of status.models) {
      const one = now?.get(id(m));
      if (!m.version || !one) continue; // what composes models counts at these
      rate += one.requests ?? 0;
      judged += one.judged ?? 0;
      hits += (one.inTime ?? 0) * (one.judged ?? 0);
      failed += one.failed ?? 0;
      if (one.p99 && one.p99 > (slowest?.p99 ?? 0)) slowest = { p99: one.p99, of: title(m) };
    }
    inTime.say(
      judged ? share(hits / judged) : '–',
      judged ? 'of the answers, within their SLO' : 'no requests',
      judged && hits / judged < 0.9 ? 'bad' : '',
    );
    latency.say(took(slowest?.p99), slowest ? `of the slowest, ${slowest.of}` : 'no requests');
    requests.say(perSecond(rate), '');
    line.fill([history.times, total(history)]);
    failures.say(perSecond(failed), failed ? 'without a result' : '', failed > 0 ? 'warn' : '');
    waiting.say(
      count(status.queue.rows),
      status.queue.rows ? `rows, the oldest for ${took(status.queue.oldest_row_seconds)}` : 'rows',
      status.queue.oldest_row_seconds > 1 ? 'warn' : '',
    );
    const used = status.payload_bytes.used / status.payload_bytes.limit;
    memory.say(size(status.payload_bytes.used), `of ${size(status.payload_bytes.limit)}`, used > 0.8 ? 'bad' : '');
    meter.firstChild.style.width = `${100 * used}%`;
  };
  node.close = () => line.close();
  return node;
}

function tile(name) {
  const value = el('strong', {}, '–'),
    note = el('span', { class: 'quiet' });
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
