// One model: how it performs, and why.

import { bars, dot, each, el, panel, setText, show, table } from './dom.js';
import { count, plural, rate, share, title, took } from './format.js';
import { plot } from './plots.js';
import { change } from './actions.js';
import { condition, withoutResult } from './overview.js';
import { newest } from './newest.js';
import { trial } from './try.js';

const replicaStates = { live: 'good', failing: 'bad', suspect: 'bad', draining: 'warn' };

export function model(page, name, version) {
  const key = `${name}/${version}`;
  const state = dot((m) => condition(m)[0], (m) => condition(m)[1]);
  const facts = el('p', { class: 'quiet' }), versions = el('p', { class: 'versions' });
  const why = el('ul', { class: 'sentences' });
  const latency = plot({ title: 'Latency', height: 170, y: { value: took }, series: [{ label: 'p99', n: 3 }, { label: 'p50', n: 0, fill: true }], empty: 'No requests yet.' });
  const inTime = plot({ title: 'In time, against deadlines', height: 170, y: { value: share, range: [0, 1.02] }, series: [{ label: 'in time', n: 2, fill: true }], empty: 'No requests yet.' });
  const load = plot({ title: 'Requests and failures a second', height: 170, y: { value: rate }, series: [{ label: 'requests/s', n: 0, fill: true }, { label: 'failed/s', n: 3 }], empty: 'No requests yet.' });
  const queue = plot({ title: 'Waiting rows', height: 170, y: { value: rate, range: (_, low, high) => [0, Math.max(1, high)] }, series: [{ label: 'rows', n: 1, fill: true }] });
  const sizes = plot({ title: 'Rows of the last batches, by why each was closed', height: 200, values: false, y: { value: rate, range: (_, low, high) => [0, Math.max(2, high * 1.1)] }, series: [], empty: 'No batches yet.' });
  const closed = bars('Batches by why they were not larger', 'No batches yet.'), waits = waited();
  const profiles = el('div', { class: 'columns' });
  const replicas = table('Replicas', [
    { name: 'Replica', head: true, cell: (r) => r.name },
    { name: 'State', node: () => dot((r) => replicaStates[r.state] ?? 'off', (r) => r.state) },
    { name: 'In flight', class: 'number', cell: (r) => `${r.in_flight} of ${r.slots}` },
    { name: 'Most rows', class: 'number', cell: (r) => count(r.most_rows) },
    { name: 'Batches', class: 'number', cell: (r) => count(r.batches) },
    { name: 'Rows', class: 'number wide', cell: (r) => count(r.rows) },
    { name: 'Failed', class: 'number', cell: (r) => count(r.failed) },
    { name: 'Last error', class: 'detail', cell: (r) => r.last_error || '–' },
  ], (r) => r.name, 'No replica is connected.');
  const reasons = bars('Requests without a result, by reason', 'Every request had a result.');
  const streams = table('Streams', [
    { name: 'Stream', head: true, cell: (s) => (s.connection ? `connection from ${s.name}` : s.name) },
    { name: 'Age', class: 'number', cell: (s) => took(s.age_seconds) },
    { name: 'Frames/s', class: 'number', cell: (s) => rate(s.frames / Math.max(s.span_seconds, 1)) },
    { name: 'Answered', class: 'number', cell: (s) => count(s.answered) },
    { name: 'Skipped', class: 'number', cell: (s) => count(s.superseded) },
    { name: 'Keep', class: 'wide', cell: (s) => s.keep },
    { name: 'Waiting', class: 'number wide', cell: (s) => count(s.waiting) },
    { name: 'Silent', class: 'number wide', cell: (s) => took(s.silent_seconds) },
  ], (s) => s.name, 'No stream has sent a frame in the last minute.');
  const box = trial(page, name, version), whens = [0, 1].map(() => el('span', {}, 'last minute'));
  const streamPanel = panel('Streams', streams), answers = newest(page, name);
  const actions = el('div', { class: 'actions' },
    action(page, 'Make it the default', `Requests that name ${name} without a version are answered by version ${version}.`, () => ({ method: 'PUT', path: `/v1/models/${encodeURIComponent(name)}/default_version`, body: { version }, done: `${name} now means version ${version}` })),
    action(page, 'Empty its cache', `All cached answers of ${name} are dropped.`, () => ({ method: 'DELETE', path: `/v1/models/${encodeURIComponent(name)}/cache`, done: 'The cache is empty' })),
    action(page, `Load ${name}`, '', () => ({ method: 'POST', path: `/v1/models/${encodeURIComponent(name)}/load`, done: `${name} is loaded` })),
    action(page, `Unload ${name}`, `All containers of ${name} are stopped, and requests to it fail until it is loaded again.`, () => ({ method: 'POST', path: `/v1/models/${encodeURIComponent(name)}/unload`, done: `${name} is unloaded` })));
  const [makeDefault, empty, starts, stops] = actions.children;
  stops.className = 'danger';
  const ofModels = [
    panel('Requests', el('div', { class: 'columns broad' }, latency, inTime, load, queue)),
    panel('Batches', el('div', { class: 'columns' }, sizes, el('div', {}, el('h3', {}, 'Why they were not larger, ', whens[0]), closed, waits))),
    panel('Replicas', replicas, profiles),
    streamPanel,
  ];
  const ofAll = panel('Without a result', el('h3', {}, whens[1]), reasons);
  const node = el('div', { class: 'view' },
    el('div', { class: 'title' }, el('h2', {}, version ? title({ name, version }) : name), state, actions), facts, versions,
    el('div', { class: 'columns' }, panel('What it does, and why', why), box), answers,
    ...(version ? ofModels : [panel('Requests', el('div', { class: 'columns broad' }, latency, inTime, load))]), ...(version ? [ofAll] : []));

  node.update = ({ status, batches, models, containers, insight, history }) => {
    const health = status?.models.find((m) => m.name === name && m.version === version);
    state.update(health ?? { replicas: 0, failing: 0 });
    const declared = models?.models.find((m) => m.name === name && m.version === version);
    setText(facts, about(health, declared));
    const others = (models?.models ?? []).filter((m) => m.name === name && m.version !== version);
    show(versions, others.length > 0 && !!version);
    each(versions, others, (m) => m.version, (m) => el('a', { href: `#/model/${encodeURIComponent(name)}/${encodeURIComponent(m.version)}` }, `version ${m.version}${m.default ? ' (default)' : ''}`));
    show(makeDefault, page.may('admin:write') && !!version && !!declared && !declared.default);
    show(empty, page.may('admin:write') && !!declared?.cache);
    const own = (containers?.containers ?? []).filter((c) => c.model === name && !c.address);
    const runs = own.some((c) => c.processes.some((p) => p.pid));
    show(starts, page.may('load', name) && own.length > 0 && !runs);
    show(stops, page.may('load', name) && runs);
    box.update(declared, models);

    const track = history.tracks.get(key), t = history.times;
    if (track) {
      const slo = health?.slo_seconds || null;
      const bound = slo ? [t.map(() => slo)] : [];
      latency.fill([t, track.p99, track.p50, ...bound], [{ label: 'p99', n: 3 }, { label: 'p50', n: 0, fill: true }, ...(slo ? [{ label: 'SLO', n: 4, dash: [4, 4] }] : [])]);
      inTime.fill([t, track.inTime]);
      load.fill([t, track.requests, track.failed]);
      queue.fill([t, track.waiting]);
    }
    const recent = batches?.models.find((b) => b.name === name && b.version === version);
    if (recent) {
      for (const when of whens) setText(when, recent.ago_seconds ? `in the last minute with requests, ${took(recent.ago_seconds)} ago` : 'last minute');
      closed.fill(notLarger(recent));
      waits.fill(recent);
      reasons.fill(withoutResult([recent]));
    }
    if (insight?.name !== name) return;
    const seen = insight.versions.find((v) => v.version === version);
    if (!seen) return;
    each(why, seen.sentences, (s) => s, (s) => el('li', {}, s));
    replicas.fill(seen.replicas);
    each(profiles, seen.replicas.filter((r) => r.fitted.length), (r) => r.name, profile);
    profiles.kept?.forEach((one, k) => one.follow(seen.replicas.find((r) => r.name === k)));
    sizes.fill(...bySize(seen.sent));
    show(streamPanel, seen.known_streams > 0);
    streams.fill(seen.streams);
  };
  node.close = () => [answers, latency, inTime, load, queue, sizes, ...(profiles.kept?.values() ?? [])].forEach((p) => p.close());
  return node;
}

function action(page, label, ask, what) {
  return el('button', { type: 'button', onclick: (e) => change(page, e.currentTarget, { ask, ...what() }) }, label);
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
    parts.push('an application');
  }
  if (health?.slo_seconds) parts.push(`in time means ${took(health.slo_seconds)}`);
  return parts.join(' · ');
}

// notLarger counts batches by the reason why they were not larger.
function notLarger(recent) {
  return Object.entries(recent.closed).filter(([, n]) => n).sort((a, b) => b[1] - a[1])
    .map(([reason, n]) => ({ name: reason, value: n, text: `${share(n / recent.batches)} · ${count(n)}` }));
}

// waited says what waits for clients that ask again on each answer brought.
function waited() {
  const node = el('p', { class: 'quiet' });
  node.fill = (recent) => {
    const vain = recent.waits_in_vain ? `, ${share(recent.waits_in_vain / recent.waits)} of them in vain` : '';
    const last = recent.last_wait ? ` The last one ${recent.last_wait}.` : '';
    setText(node, `${plural(recent.waits, 'wait')} for clients that ask again on each answer brought ${plural(recent.waited_rows, 'row')}${vain}.${last}`);
    show(node, recent.waits > 0);
  };
  return node;
}

// bySize makes the columns of batches by size, a series for each reason.
function bySize(sent) {
  const reasons = [...new Set(sent.map((b) => b.closed))].sort();
  const columns = [sent.map((b) => b.at), ...reasons.map((reason) => sent.map((b) => (b.closed === reason ? b.rows : null)))];
  return [columns, reasons.map((label, n) => ({ label, n, width: 0, points: true }))];
}

// profile plots how long a replica's batches take by their size: the measurements, and the curve
// used for planning.
function profile(r) {
  const node = plot({
    title: `Latency profile of ${r.name}`, height: 200, values: false, x: { value: (v) => rate(v), range: (_, low, high) => [0, Math.max(2, high * 1.05)] }, y: { value: took, range: (_, low, high) => [0, high * 1.1] },
    series: [], empty: 'Nothing was measured yet.',
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
    node.fill([0, 1, 2, 3].map((i) => points.map((p) => p[i])), [
      { label: 'measured', n: 0, width: 0, points: true }, { label: 'fitted, typical', n: 2, spanGaps: true }, { label: 'planned with', n: 3, dash: [5, 4], spanGaps: true },
    ]);
    node.say(`Latency profile of ${now.name}: ${now.fitted.map((p) => `${p.rows} rows ${took(p.typical_seconds)}`).join(', ')}`);
  };
  return node;
}
