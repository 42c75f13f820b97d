// Applications: what they answer, and what their policies have learned.

import { bars, dot, each, el, setText } from './dom.js';
import { fold } from './fold.js';
import { count, perSecond, plural, rate, share, took } from './format.js';
import { plot } from './plots.js';

export function applications(page) {
  const list = el('div', { class: 'columns' });
  const nothing = el('p', { class: 'quiet nothing' }, 'There are no applications.');
  const fault = el('p', { class: 'bad nothing' });
  const node = fold('Applications', false, fault, nothing, list);
  node.update = ({ applications: known, status, history, now }) => {
    if (!known) return;
    setText(fault, known.error ?? '');
    fault.hidden = !known.error;
    const apps = known.apps ?? [];
    nothing.hidden = apps.length > 0 || !!known.error;
    node.say(known.error ? 'cannot be read' : apps.length ? plural(apps.length, 'application') : 'none', known.error ? 'bad' : '');
    each(list, apps, (a) => a.name, () => application());
    for (const a of apps) {
      list.kept.get(a.name).follow(a, status?.models.find((m) => m.name === a.name && !m.version), now?.get(`${a.name}/`), history);
    }
  };
  node.close = () => list.kept?.forEach((one) => one.close());
  return node;
}

function application() {
  const link = el('a'), policy = el('span', { class: 'quiet' }), answers = el('p', { class: 'quiet' });
  const state = dot((h) => (!h?.replicas ? 'bad' : 'good'), (h) => (h?.replicas ? 'answers' : 'no model'));
  const now = bars('Share of each model', 'The policy has learned nothing yet.');
  const over = plot({ title: 'Shares over time', height: 140, series: [], y: { value: share, range: [0, 1] }, empty: 'No shares yet.' });
  const node = el('article', {}, el('h3', {}, link, ' ', policy), state, answers, el('div', { class: 'columns' }, now, over));
  node.follow = (a, health, rates, history) => {
    setText(link, a.name);
    link.setAttribute('href', `#/model/${encodeURIComponent(a.name)}`);
    setText(policy, `${a.policy || 'single'}${a.slo ? `, SLO ${a.slo}` : ''}`);
    state.update(health);
    const parts = [`p99 ${took(rates?.p99)}`, `in time ${share(rates?.inTime)}`, `requests ${perSecond(rates?.requests)}`];
    if (health?.defaults) parts.push(`${plural(health.defaults, 'default answer')}`);
    if (health?.missing_voices) parts.push(`${count(health.missing_voices)} without a model's prediction`);
    if (a.learned) parts.push(`learned from ${plural(a.learned.rounds, 'feedback')}`);
    setText(answers, parts.join(' · '));
    const models = (a.learned?.models ?? []).map((m) => m.model);
    now.fill((a.learned?.models ?? []).map((m, i) => ({ name: m.model, value: m.share, of: 1, text: `${share(m.share)} · loss ${rate(m.loss)}`, color: `var(--c${i % 8})` })));
    const track = history.shares.get(a.name);
    over.hidden = models.length === 0;
    if (models.length) over.fill([history.times, ...models.map((m) => track?.[m] ?? [])], models.map((label, n) => ({ label, n })));
  };
  node.close = () => over.close();
  return node;
}
