// Pipelines: what feeds what, and how each stage does.

import { ask } from './api.js';
import { dot, each, el, setText, show } from './dom.js';
import { fold } from './fold.js';
import { count, perSecond, plural, rate, share, took } from './format.js';
import { sideways, table } from './table.js';

export function pipelines() {
  const list = el('div', { class: 'stack' });
  const nothing = el('p', { class: 'quiet nothing' }, 'There are no pipelines.');
  const fault = el('p', { class: 'bad nothing' });
  const node = fold('Pipelines', false, fault, nothing, list);
  node.update = ({ pipelines: known, now }) => {
    if (!known) return;
    setText(fault, known.error ?? '');
    show(fault, !!known.error);
    const all = known.pipelines ?? [];
    show(nothing, all.length === 0 && !known.error);
    const bad = all.filter((p) => p.faults.length).length;
    node.say(known.error ? 'cannot be read' : bad ? `${count(bad)} of ${count(all.length)} refuse requests` : all.length ? plural(all.length, 'pipeline') : 'none', known.error || bad ? 'bad' : '');
    each(list, all, (p) => p.name, () => pipeline());
    for (const p of all) list.kept.get(p.name).follow(p, now?.get(`${p.name}/`));
  };
  return node;
}

const lost = (l) => Object.values(l.lost).reduce((a, b) => a + b, 0);

function pipeline() {
  const link = el('a'), from = el('span', { class: 'quiet' }), answers = el('p', { class: 'quiet' });
  const state = dot((p) => (p.faults.length ? 'bad' : 'good'), (p) => (p.faults.length ? 'refuses requests' : 'answers'));
  const faults = el('ul', { class: 'warnings', 'aria-label': 'Why requests are refused' });
  const picture = el('div', { class: 'graph' });
  const stages = table('Stages, in the last minute', [
    { name: 'Stage', head: true, cell: (s) => s.stage },
    { name: 'Requests', class: 'number', cell: (s) => count(s.requests) },
    { name: 'Rows each', class: 'number', cell: (s) => (s.requests ? rate(s.rows / s.requests) : '–') },
    { name: 'Batch', class: 'number', cell: (s) => (s.batch_rows ? `${rate(s.batch_rows)} rows` : '–') },
    { name: 'Waited', class: 'number', cell: (s) => (s.took_seconds ? took(s.waited_seconds) : '–') },
    { name: 'Took', class: 'number', cell: (s) => (s.took_seconds ? took(s.took_seconds) : '–') },
    { name: 'p99', class: 'number', cell: (s) => (s.took_seconds ? `≤ ${took(s.took99_seconds)}` : '–') },
    { name: 'Of the deadline', class: 'number', cell: (s) => (s.took_seconds ? share(s.share) : '–') },
    { name: 'Left out', class: 'number', cell: (s) => count(s.left_out) },
    { name: 'Not begun', class: 'number', cell: (s) => count(s.not_begun) },
    { name: 'Lost', class: 'number', cell: (s) => (s.rows ? share(lost(s) / s.rows) : '–') },
  ], (s) => s.stage, 'No stage is known yet.');
  const node = el('article', {}, el('h3', {}, link, ' ', from), state, faults, answers, sideways('Stages as a graph', picture), stages);
  let drawn = '';
  node.follow = (p, rates) => {
    setText(link, p.name);
    link.setAttribute('href', `#/model/${encodeURIComponent(p.name)}`);
    setText(from, p.origin === 'file' ? 'of the configuration file' : '');
    state.update(p);
    show(faults, p.faults.length > 0);
    each(faults, p.faults, (f) => f, (f) => el('li', {}, f));
    setText(answers, `p99 ${took(rates?.p99)} · in time ${share(rates?.inTime)} · requests ${perSecond(rates?.requests)}`);
    stages.fill(p.load);
    const { load, faults: wrong, ...definition } = p;
    const edition = JSON.stringify(definition);
    if (edition !== drawn) {
      drawn = edition;
      draw(picture, p.name).catch(() => { drawn = ''; }); // the next update tries again
    }
    for (const text of picture.querySelectorAll('[data-stage]')) {
      const one = load.find((s) => s.stage === text.dataset.stage);
      if (one) setText(text, one.summary);
    }
  };
  return node;
}

// draw replaces a picture by the server's drawing of a pipeline.
async function draw(picture, name) {
  const { svg } = await ask('GET', `/v1/pipelines/${encodeURIComponent(name)}/drawing`);
  const { documentElement } = new DOMParser().parseFromString(svg, 'image/svg+xml');
  picture.replaceChildren(document.importNode(documentElement, true));
}
