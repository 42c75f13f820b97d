// The newest answer of each stream of a model or an application: boxes are drawn, without the
// picture, which the server does not keep.

import { ask } from './api.js';
import { each, el, setText, show } from './dom.js';
import { fold } from './fold.js';
import { plural, took } from './format.js';
import { objects, sketch } from './objects.js';

const shown = 12; // streams
const values = 40; // of an output that is no list of boxes

export function newest(page, name) {
  const note = el('p', { class: 'quiet nothing' }), list = el('div', { class: 'columns' });
  const node = fold('Newest answers', false, note, list);
  let asking = false;
  // Asking makes the server keep these answers: it happens only while somebody looks.
  const look = async () => {
    if (asking || document.hidden || node.hidden || !node.open || !page.may('infer', name)) return;
    asking = true;
    try {
      const got = await ask('GET', `/v1/models/${encodeURIComponent(name)}/latest?limit=${shown}`);
      each(list, got.answers, (a) => JSON.stringify([a.name, a.connection, a.client, a.identity]), one);
      const more = got.known - got.answers.length;
      setText(note, got.known === 0 ? 'There is none that you may see.' : `and ${plural(more, 'more stream')}`);
      show(note, got.known === 0 || more > 0);
    } catch (error) {
      setText(note, error.message);
      show(note, true);
    } finally {
      asking = false;
    }
  };
  const timer = setInterval(look, 1000);
  node.addEventListener('toggle', look);
  node.close = () => clearInterval(timer);
  return node;
}

// one is a stream and its newest answer.
function one(first) {
  const title = first.connection ? `connection from ${first.name}` : first.name;
  const about = el('p', { class: 'quiet' }), canvas = sketch();
  const text = el('pre', { tabindex: '0', role: 'region', 'aria-label': `Newest answer of ${title}` });
  const node = el('article', {}, el('h3', {}, title), about, canvas, text);
  node.update = (a) => {
    const parts = [`frame ${a.seq}`, `${took(a.age_seconds)} old`, `by ${a.model}/${a.version}`];
    if (!a.connection && a.client) parts.push(`from ${a.client}`);
    if (a.identity) parts.push(a.identity);
    setText(about, parts.join(' · '));
    const found = objects(a.outputs);
    show(canvas, !!found);
    show(text, !found);
    if (found) canvas.draw(found);
    else setText(text, a.outputs.map(line).join('\n'));
  };
  return node;
}

function line(o) {
  const data = o.data.slice(0, values), left = o.elements - data.length;
  return `${o.name} ${o.datatype} [${o.shape.join(', ')}]: ${JSON.stringify(data)}${left > 0 ? ` and ${left} more` : ''}`;
}
