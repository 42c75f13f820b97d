// The verdict: whether all is well and, if not, the one sentence that matters.

import { el, each, setClass, setText, show } from './dom.js';
import { byId, count, id, lately, listed, plural, rate, share, size, took, title } from './format.js';
import { fold } from './fold.js';
import { without } from './outcomes.js';

const sum = (list) => list.reduce((all, one) => all + one.value, 0);

const few = 20; // requests in a minute, below which a share says nothing

const model = (m) => `#/model/${encodeURIComponent(m.name)}${m.version ? `/${encodeURIComponent(m.version)}` : ''}`;

// findings lists what is wrong, the worst first: {kind: bad or warn, text, href}.
// The first one is all there is to say while the server does not answer.
export function findings({ status, now, minute, pipelines, batches, lost }) {
  if (lost) return [{ kind: 'bad', text: 'The server does not answer.' }];
  const found = [];
  const add = (kind, text, href) => found.push({ kind, text, href });
  const { readiness } = status;
  if (!readiness.ready) add('bad', `Not ready: ${readiness.reason}.`);
  const gone = status.models.filter((m) => m.version && m.replicas === 0 && !m.absence);
  if (gone.length)
    add(
      'bad',
      `${listed(gone.map(title))} ${gone.length > 1 ? 'have' : 'has'} no replica: requests for ${gone.length > 1 ? 'them' : 'it'} fail.`,
      model(gone[0]),
    );
  const dead = status.models.filter((m) => m.replicas > 0 && m.failing === m.replicas);
  if (dead.length) add('bad', `Every replica of ${listed(dead.map(title))} fails on every batch.`, model(dead[0]));
  for (const p of pipelines?.pipelines ?? [])
    if (p.faults.length) add('bad', `Pipeline ${p.name} refuses requests: ${p.faults[0]}.`, model(p));
  for (const m of status.models)
    if (m.kind === 'application' && m.replicas === 0)
      add('bad', `Application ${m.name} has no model that answers.`, model(m));
  if (readiness.degraded && !(dead.length && readiness.degraded.startsWith('every replica fails')))
    add('warn', `${capital(readiness.degraded)}.`);
  const ailing = status.models.filter((m) => m.failing > 0 && m.failing < m.replicas);
  for (const m of ailing)
    add('warn', `${m.failing} of ${plural(m.replicas, 'replica')} of ${title(m)} fail on every batch.`, model(m));
  for (const w of status.warnings) add('warn', `${capital(w)}.`);
  for (const m of status.models) {
    const one = now?.get(id(m));
    if (one?.inTime === null || one?.inTime === undefined || one.judged * minute.span < few || one.inTime >= 0.9) continue;
    add(
      one.inTime < 0.5 ? 'bad' : 'warn',
      `${title(m)} answers only ${share(one.inTime)} of its requests in time, within ${took(m.slo_seconds)}.`,
      model(m),
    );
  }
  const known = byId(status.models);
  for (const b of batches?.models ?? []) {
    if (!known.get(id(b))?.replicas) continue; // it is named above, or retired
    const [failed] = without([b]),
      many = sum(failed),
      all = many + (b.outcomes.ok ?? 0);
    if (!b.ago_seconds && all >= few && many / all >= 0.01)
      add(
        'warn',
        `${share(many / all)} of the requests to ${title(b)} fail, most of them by reason of ${failed[0].name.replaceAll('_', ' ')}.`,
        model(b),
      );
  }
  if (status.queue.oldest_row_seconds > 1)
    add('warn', `Requests wait for up to ${took(status.queue.oldest_row_seconds)}.`);
  const { used, limit } = status.payload_bytes;
  if (used > 0.8 * limit) add('warn', `Payloads take ${size(used)} of the ${size(limit)} that they may.`, '#/settings');
  const over = status.clients.filter((c) => c.quotas.some((q) => q.refused && q.refused_seconds <= 60));
  if (over.length)
    add(
      'warn',
      `${capital(listed(over.map((c) => c.name)))} ${over.length > 1 ? 'are' : 'is'} over a quota.`,
      '#/settings',
    );
  return found.sort((a, b) => (a.kind === 'warn') - (b.kind === 'warn'));
}

// word is the verdict in a word or two, and its colour.
export function word({ found, status, lost }) {
  if (lost) return ['no connection', 'bad'];
  if (!status.readiness.ready) return ['not ready', 'bad'];
  if (found.length === 0) return ['healthy', 'good'];
  return [plural(found.length, 'finding'), found[0].kind];
}

const capital = (text) => (text.charAt(0).toUpperCase() + text.slice(1)).replace(/\.+$/, '');

// does says in a sentence what the server is at.
function does({ status, now, minute }) {
  const models = status.models.filter((m) => m.version && m.replicas > 0);
  if (models.length === 0) return 'No model is here yet: start a container, or name a model file in the configuration.';
  let requests = 0,
    judged = 0,
    hits = 0;
  for (const m of models) {
    const one = now?.get(id(m));
    requests += one?.requests ?? 0;
    judged += one?.judged ?? 0;
    hits += (one?.inTime ?? 0) * (one?.judged ?? 0);
  }
  const who = plural(models.length, 'model'),
    several = models.length > 1;
  if (minute.span === 0) return `${who} ${several ? 'are' : 'is'} ready.`;
  if (requests === 0) return `${who} ${several ? 'are' : 'is'} ready; nobody asked in ${lately(minute)}.`;
  const rates = requests >= 1 ? `${rate(requests)} requests a second` : `${rate(60 * requests)} requests a minute`;
  return `${who} ${several ? 'answer' : 'answers'} ${rates}${judged ? `, ${share(hits / judged)} in time` : ''}.`;
}

// further is a finding below the first one.
function further() {
  const link = el('a'),
    text = el('span');
  const node = el('li', {}, link, text);
  node.update = (f) => {
    setClass(node, f.kind);
    setText(link, f.href ? f.text : '');
    setText(text, f.href ? '' : f.text);
    show(link, !!f.href);
    if (f.href) link.setAttribute('href', f.href);
  };
  return node;
}

export function verdict() {
  const sentence = el('h2', {}, 'Connecting'),
    link = el('a', {}, 'Look'),
    note = el('p', { class: 'quiet' });
  const list = el('ul', { class: 'findings', 'aria-label': 'Further findings' });
  const more = fold('Further findings', false, list);
  const node = el(
    'section',
    { class: 'verdict off', 'aria-label': 'Verdict' },
    el('div', { class: 'main' }, sentence, link),
    note,
    more,
  );
  node.update = (state) => {
    if (!state.status) return;
    const [first, ...rest] = state.found;
    setClass(node, `verdict ${first?.kind ?? 'good'}`);
    setText(sentence, first?.text ?? 'Healthy');
    show(link, !!first?.href);
    if (first?.href) link.setAttribute('href', first.href);
    setText(note, does(state));
    show(more, rest.length > 0);
    more.say(count(rest.length), rest[0]?.kind);
    // Most have figures that change each second, and their links keep the focus.
    each(list, rest, (f) => rest.indexOf(f), further);
  };
  return node;
}
