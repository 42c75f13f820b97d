// One model: how it does, and why.

import { dot, each, el, setText, show } from './dom.js';
import { count, lately, perSecond, plural, rate, share, title, took } from './format.js';
import { change } from './actions.js';
import { batches as batchPanel } from './batches.js';
import { fold } from './fold.js';
import { condition, retired } from './models.js';
import { newest } from './newest.js';
import { outcomes } from './outcomes.js';
import { plot } from './plots.js';
import { profile } from './profile.js';
import { settingTable } from './settings.js';
import { table } from './table.js';
import { trial } from './try.js';

const replicaStates = { live: 'good', failing: 'bad', suspect: 'bad', draining: 'warn' };
const far = 10; // times what is shown: an SLO beyond would flatten it

export function model(page, name, version) {
  const key = `${name}/${version}`;
  const state = dot(
    (m) => condition(m)[0],
    (m) => condition(m)[1],
  );
  const versions = otherVersions(name, version),
    figures = el('p', { class: 'figures' }),
    facts = el('p', { class: 'quiet' });
  const why = diagnosis();
  const graphs = requests(!!version);
  const replicas = replicaTable(),
    profiles = el('div', { class: 'columns' }),
    streams = streamTable();
  const boxes = fold('Replicas', false, replicas, profiles),
    frames = fold('Streams', false, streams);
  const losses = outcomes(),
    without = fold('Without a result', false, losses);
  const sent = batchPanel(),
    set = settingTable(`Settings of ${name}`),
    setFold = fold('Settings in effect', false, set);
  const box = trial(page, name, version),
    answers = newest(page, name);
  const actions = operations(page, name, version);
  const parts = version ? [sent, boxes, frames, answers, without, setFold] : [answers];
  const node = el(
    'div',
    { class: 'view' },
    el(
      'section',
      { class: 'verdict off', 'aria-label': name },
      el('div', { class: 'title' }, el('h2', {}, version ? title({ name, version }) : name), state, versions, actions),
      figures,
      facts,
    ),
    why,
    fold('Requests', true, graphs),
    box,
    ...parts,
  );

  node.update = ({ status, batches, models, containers, insight, history, now, minute }) => {
    const health = status?.models.find((m) => m.name === name && m.version === version);
    const known = health ?? { replicas: 0, failing: 0 };
    state.update(known);
    node.firstChild.className = `verdict ${condition(known)[0]}`;
    const declared = models?.models.find((m) => m.name === name && m.version === version);
    setText(figures, summary(now?.get(key), known, minute));
    setText(facts, about(health, declared));
    versions.update(models, status);
    actions.update(declared, containers);
    box.update(declared, models);
    set.fill(Object.entries(declared?.policy ?? {}).map(([k, value]) => ({ key: k, value })));
    graphs.update(history, key, health);
    const recent = batches?.models.find((b) => b.name === name && b.version === version);
    if (recent) {
      const failed = losses.fill([recent]);
      without.say(
        failed ? `${plural(failed, 'request')} failed ${when(recent)}` : `no failure ${when(recent)}`,
        failed ? 'warn' : '',
      );
      sent.update(recent, when(recent));
    }
    show(answers, !!health?.streams || !!status?.streams.some((s) => s.model === name));
    if (insight?.name !== name) return;
    const seen = insight.versions.find((v) => v.version === version);
    if (!seen) return;
    why.fill(seen.sentences);
    replicas.fill(seen.replicas);
    const bad = seen.replicas.filter((r) => r.state === 'failing' || r.state === 'suspect').length;
    boxes.say(
      bad
        ? `${count(bad)} of ${plural(seen.replicas.length, 'replica')} failing`
        : plural(seen.replicas.length, 'replica'),
      bad ? 'bad' : '',
    );
    each(
      profiles,
      seen.replicas.filter((r) => r.fitted.length),
      (r) => r.name,
      profile,
    );
    profiles.kept?.forEach((one, k) => one.follow(seen.replicas.find((r) => r.name === k)));
    sent.fill(seen.sent);
    show(frames, seen.known_streams > 0);
    frames.say(plural(seen.known_streams, 'stream'));
    streams.fill(seen.streams);
  };
  node.close = () => [answers, graphs, sent, ...(profiles.kept?.values() ?? [])].forEach((p) => p.close());
  return node;
}

// otherVersions links to them; those that are retired are gray.
function otherVersions(name, version) {
  const node = el('p', { class: 'versions' });
  const link = (first) => {
    const one = el('a', { href: `#/model/${encodeURIComponent(name)}/${encodeURIComponent(first.version)}` });
    one.update = ({ version: v, default: meant, health }) => {
      setText(one, `version ${v}${meant ? ' (default)' : ''}`);
      one.classList.toggle('retired', !!health && retired(health));
    };
    return one;
  };
  node.update = (models, status) => {
    const health = (m) => status?.models.find((h) => h.name === name && h.version === m.version);
    const others = (models?.models ?? []).filter((m) => version && m.name === name && m.version !== version);
    show(node, others.length > 0);
    const list = others.map((m) => ({ ...m, health: health(m) }));
    each(node, list, (m) => m.version, link);
  };
  return node;
}

const when = (recent) =>
  recent.ago_seconds ? `in the last minute with requests, ${took(recent.ago_seconds)} ago` : 'in the last minute';

// diagnosis are the sentences of explain, the first of which say most.
function diagnosis() {
  const first = el('ul', { class: 'sentences', 'aria-label': 'Diagnosis' }),
    rest = el('ul', { class: 'sentences' });
  const word = el('summary', {}),
    more = el('details', { class: 'more' }, word, rest);
  const node = fold('Diagnosis', true, first, more);
  const fill = (list, sentences) =>
    each(
      list,
      sentences,
      (s) => s,
      (s) => el('li', {}, s),
    );
  node.fill = (sentences) => {
    fill(first, sentences.slice(0, 4));
    fill(rest, sentences.slice(4));
    show(more, sentences.length > 4);
    setText(word, plural(sentences.length - 4, 'more sentence'));
  };
  return node;
}

// summary is how a model did in the last minute.
function summary(now, m, minute) {
  if (minute.span === 0) return '';
  if (!now?.requests) return `No requests in ${lately(minute)}.`;
  const parts = [
    `p99 ${took(now.p99)}`,
    `${share(now.inTime)} in time${m.slo_seconds ? `, within ${took(m.slo_seconds)}` : ''}`,
    `requests ${perSecond(now.requests)}`,
    `failed ${perSecond(now.failed)}`,
  ];
  if (now.superseded) parts.push(`superseded ${perSecond(now.superseded)}`);
  return parts.join(' · ');
}

// about describes a model in a line.
function about(health, m) {
  const parts = [];
  if (m?.platform) parts.push(m.platform);
  if (m) {
    const tensor = (t) => `${t.name} ${t.datatype} [${t.shape.join(', ')}]`;
    parts.push(`takes ${m.inputs.map(tensor).join('; ') || 'no inputs'}`, `gives ${m.outputs.map(tensor).join('; ')}`);
    parts.push(m.batched ? `at most ${plural(m.max_batch, 'row')} in a batch` : 'not batched');
  } else if (health && !health.version) {
    parts.push(`${health.kind === 'pipeline' ? 'a pipeline' : 'an application'}`);
  }
  return parts.join(' · ');
}

// requests are the plots of the last ten minutes.
function requests(ofModel) {
  const p99 = { label: 'p99', n: 3 },
    p50 = { label: 'p50', n: 0 };
  const latency = plot({
    title: 'Latency',
    height: 180,
    y: { value: took, log: true },
    series: [p99, p50],
    empty: 'No requests yet.',
  });
  const inTime = plot({
    title: 'Share in time',
    height: 180,
    y: { value: share, range: [0, 1.02] },
    series: [{ label: 'in time', n: 2, fill: true }],
    empty: 'No requests yet.',
  });
  const load = plot({
    title: 'Requests',
    height: 180,
    y: { value: perSecond },
    series: [
      { label: 'requests', n: 0, fill: true },
      { label: 'failed', n: 3 },
      { label: 'superseded', n: 7, dash: [2, 3] },
    ],
    empty: 'No requests yet.',
  });
  const queue = plot({
    title: 'Waiting rows',
    height: 180,
    y: { value: rate, range: (_, low, high) => [0, Math.max(1, high)] },
    series: [{ label: 'rows', n: 1, fill: true }],
  });
  const note = el('p', { class: 'quiet slo' });
  const node = el('div', { class: 'columns broad' }, el('div', {}, latency, note), inTime, load, ofModel && queue);
  node.update = (history, key, health) => {
    const track = history.tracks.get(key),
      t = history.times,
      slo = health?.slo_seconds;
    if (!track) return;
    const shown = [...track.p99, ...track.p50].filter((v) => v > 0),
      highest = Math.max(0, ...shown);
    const near = slo && highest > 0 && slo <= far * highest && slo * far >= Math.min(...shown);
    latency.fill(
      [t, track.p99, track.p50, ...(near ? [t.map(() => slo)] : [])],
      [p99, p50, ...(near ? [{ label: 'SLO', n: 4, dash: [4, 4] }] : [])],
    );
    setText(
      note,
      slo && !near && highest > 0 ? `The SLO, ${took(slo)}, is far ${slo > highest ? 'above' : 'below'}.` : '',
    );
    inTime.fill([t, track.inTime]);
    load.fill([t, track.requests, track.failed, track.superseded]);
    queue.fill([t, track.waiting]);
  };
  node.close = () => [latency, inTime, load, queue].forEach((p) => p.close());
  return node;
}

function replicaTable() {
  return table(
    'Replicas',
    [
      { name: 'Replica', head: true, cell: (r) => r.name },
      {
        name: 'State',
        node: () =>
          dot(
            (r) => replicaStates[r.state] ?? 'off',
            (r) => r.state,
          ),
      },
      { name: 'In flight', class: 'number', cell: (r) => `${r.in_flight} of ${r.slots}` },
      { name: 'Most rows', class: 'number', cell: (r) => count(r.most_rows) },
      { name: 'Batches', class: 'number', cell: (r) => count(r.batches) },
      { name: 'Rows', class: 'number', cell: (r) => count(r.rows) },
      { name: 'Failed', class: 'number', cell: (r) => count(r.failed) },
      { name: 'Last error', class: 'detail', cell: (r) => r.last_error || '–' },
    ],
    (r) => r.name,
    'No replica is connected.',
  );
}

function streamTable() {
  return table(
    'Streams',
    [
      { name: 'Stream', head: true, cell: (s) => (s.connection ? `connection from ${s.name}` : s.name) },
      { name: 'Age', class: 'number', cell: (s) => took(s.age_seconds) },
      { name: 'Frames', class: 'number', cell: (s) => perSecond(s.frames / Math.max(s.span_seconds, 1)) },
      { name: 'Answered', class: 'number', cell: (s) => count(s.answered) },
      { name: 'Superseded', class: 'number', cell: (s) => count(s.superseded) },
      { name: 'Keep', cell: (s) => s.keep },
      { name: 'Waiting', class: 'number', cell: (s) => count(s.waiting) },
      { name: 'Silent', class: 'number', cell: (s) => took(s.silent_seconds) },
    ],
    (s) => s.name,
    'No stream has sent a frame in the last minute.',
  );
}

// operations are the buttons of those who may.
function operations(page, name, version) {
  const path = (rest) => `/v1/models/${encodeURIComponent(name)}/${rest}`;
  const button = (label, ask, what, kind = '') =>
    el(
      'button',
      { type: 'button', class: kind, onclick: (e) => change(page, e.currentTarget, { ask, ...what }) },
      label,
    );
  const makeDefault = button(
    'Make it the default',
    `Requests that name ${name} without a version are answered by version ${version}.`,
    { method: 'PUT', path: path('default_version'), body: { version }, done: `${name} now means version ${version}` },
  );
  const clears = button('Clear its cache', `All cached answers of ${name} are dropped.`, {
    method: 'DELETE',
    path: path('cache'),
    done: 'The cache is clear',
  });
  const starts = button(`Load ${name}`, '', { method: 'POST', path: path('load'), done: `${name} is loaded` });
  const stops = button(
    `Unload ${name}`,
    `All containers of ${name} are stopped, and requests to it fail until it is loaded again.`,
    { method: 'POST', path: path('unload'), done: `${name} is unloaded` },
    'danger',
  );
  const node = el('div', { class: 'actions' }, makeDefault, clears, starts, stops);
  node.update = (declared, containers) => {
    show(makeDefault, page.may('admin:write') && !!version && !!declared && !declared.default);
    show(clears, page.may('admin:write') && !!declared?.cache);
    const own = (containers?.containers ?? []).filter((c) => c.model === name && !c.address);
    const runs = own.some((c) => c.processes.some((p) => p.pid));
    show(starts, page.may('load', name) && own.length > 0 && !runs);
    show(stops, page.may('load', name) && runs);
  };
  return node;
}
