// The verdict: whether all is well and, if not, the one sentence that matters.

import { el, each, setClass, setText, show } from './dom.js';
import { count, listed, plural, rate, share, size, took, title } from './format.js';
import { fold } from './fold.js';
import { without } from './outcomes.js';

const sum = (list) => list.reduce((all, one) => all + one.value, 0);

const few = 20; // requests in a minute, below which a share says nothing

const model = (m) => `#/model/${encodeURIComponent(m.name)}${m.version ? `/${encodeURIComponent(m.version)}` : ''}`;

// findings lists what is wrong, the worst first: {kind: bad or warn, text, href}.
export function findings({ status, now, pipelines, batches }) {
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
    const one = now?.get(`${m.name}/${m.version}`);
    if (one?.inTime === null || one?.inTime === undefined || one.judged * 60 < few || one.inTime >= 0.9) continue;
    add(
      one.inTime < 0.5 ? 'bad' : 'warn',
      `${title(m)} answers only ${share(one.inTime)} of its requests in time, within ${took(m.slo_seconds)}.`,
      model(m),
    );
  }
  for (const b of batches?.models ?? []) {
    const of = status.models.find((m) => m.name === b.name && m.version === b.version);
    if (!of?.replicas) continue; // it is named above, or retired
    const [failed] = without([b]),
      lost = sum(failed),
      all = lost + (b.outcomes.ok ?? 0);
    if (!b.ago_seconds && all >= few && lost / all >= 0.01)
      add(
        'warn',
        `${share(lost / all)} of the requests to ${title(b)} fail, most of them by reason of ${failed[0].name.replaceAll('_', ' ')}.`,
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
export function word(found, status) {
  if (!status.readiness.ready) return ['not ready', 'bad'];
  if (found.length === 0) return ['healthy', 'good'];
  return [plural(found.length, 'finding'), found[0].kind];
}

const capital = (text) => (text.charAt(0).toUpperCase() + text.slice(1)).replace(/\.+$/, '');

// does says in a sentence what the server is at.
function does({ status, now }) {
  const models = status.models.filter((m) => m.version && m.replicas > 0);
  if (models.length === 0) return 'No model is here yet: start a container, or name a model file in the configuration.';
  let requests = 0,
    judged = 0,
    hits = 0;
  for (const m of models) {
    const one = now?.get(`${m.name}/${m.version}`);
    requests += one?.requests ?? 0;
    judged += one?.judged ?? 0;
    hits += (one?.inTime ?? 0) * (one?.judged ?? 0);
  }
  const who = plural(models.length, 'model'),
    several = models.length > 1;
  if (requests === 0) return `${who} ${several ? 'are' : 'is'} ready; nobody asked in the last minute.`;
  const rates = requests >= 1 ? `${rate(requests)} requests a second` : `${rate(60 * requests)} requests a minute`;
  return `${who} ${several ? 'answer' : 'answers'} ${rates}${judged ? `, ${share(hits / judged)} in time` : ''}.`;
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
    const [first, ...rest] = findings(state);
    setClass(node, `verdict ${first?.kind ?? 'good'}`);
    setText(sentence, first?.text ?? 'Healthy');
    show(link, !!first?.href);
    if (first?.href) link.setAttribute('href', first.href);
    setText(note, does(state));
    show(more, rest.length > 0);
    more.say(count(rest.length), rest[0]?.kind);
    each(
      list,
      rest,
      (f) => f.text,
      (f) => el('li', { class: f.kind }, f.href ? el('a', { href: f.href }, f.text) : f.text),
    );
  };
  return node;
}
