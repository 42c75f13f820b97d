// A box to try a model: a picture, a drawing or JSON goes in; the answer and its timing come out.

import { ask } from './api.js';
import { each, el, setText, show } from './dom.js';
import { fold } from './fold.js';
import { rate, share, took } from './format.js';
import { drawn as found } from './objects.js';

export function trial(page, name, version) {
  const kinds = el('div', { class: 'tabs', role: 'group', 'aria-label': 'What to send' });
  const json = el('textarea', { rows: 5, spellcheck: 'false', 'aria-label': `Input of ${name} as JSON` });
  const drawn = drawing();
  const none = el('p', { class: 'quiet', hidden: true }, 'This model takes no inputs.');
  const send = el('button', { type: 'button', class: 'primary' }, 'Send');
  const fault = el('p', { class: 'bad', role: 'alert' });
  const note = el('p', { class: 'quiet', role: 'note' });
  const answer = result();
  const chosen = chooser(fault, () => {
    wanted = 'image';
    if (input) choose(wanted);
  });
  const boxes = { draw: el('div', {}, drawn), image: chosen, json };
  const names = { draw: 'Draw', image: 'Picture', json: 'JSON' };
  const node = fold('Try it', false, el('div', { role: 'region', 'aria-label': 'Try it' }, kinds, none, ...Object.values(boxes), el('div', { class: 'buttons' }, send), fault, note, answer));
  let kind = 'json', wanted = '', input = null, inputs = null, sending = false;

  const choose = (next) => {
    kind = next;
    for (const [k, box] of Object.entries(boxes)) show(box, k === kind);
    for (const b of kinds.children) b.setAttribute('aria-pressed', String(b.value === kind));
  };
  const buttons = Object.entries(names).map(([value, label]) => el('button', { type: 'button', value, onclick: () => choose(wanted = value) }, label));
  kinds.append(...buttons);
  buttons[0].hidden = buttons[1].hidden = true; // until it is known which input a picture is for
  choose('json');
  // Until the inputs are known, only JSON that the user wrote can be sent.
  const ready = () => { send.disabled = sending || (!inputs && !json.value.trim()); };
  json.addEventListener('input', ready);
  ready();

  // value is what is sent, and the picture that it is made of.
  const value = async () => {
    if (kind === 'json') return [JSON.parse(json.value)];
    const picture = kind === 'draw' ? { bitmap: drawn.canvas, blob: await png(drawn.canvas) } : await chosen.picture;
    if (!picture) throw new Error('Choose a picture first.');
    if (input.datatype !== 'BYTES' && !input.image) return [pixels(picture.bitmap, input, note), picture.bitmap];
    const bytes = new Uint8Array(await picture.blob.arrayBuffer());
    return [{ b64: base64(bytes), ...(input.image && { shape: [1, bytes.length] }) }, picture.bitmap];
  };
  send.addEventListener('click', async () => {
    sending = true;
    ready();
    setText(fault, '');
    setText(note, '');
    try {
      const [one, picture] = await value();
      const body = { input: picture && inputs.length > 1 ? { [input.name]: one } : one };
      if (version) body.version = version;
      const before = performance.now();
      const got = await ask('POST', `/v1/models/${encodeURIComponent(name)}/try`, body);
      answer.fill(got, (performance.now() - before) / 1000, picture);
    } catch (error) {
      answer.hidden = true;
      setText(fault, error.message);
      if (error.status === 401) page.signIn(error.message);
    } finally {
      sending = false;
      ready();
    }
  });

  // The inputs are those of the model or, for an application, of a model of the same form.
  node.update = (declared, models) => {
    const of = declared ?? models?.models.find((m) => page.state.applications?.apps?.find((a) => a.name === name)?.models.some((l) => l.split('/')[0] === m.name));
    if (!of || inputs) return;
    inputs = of.inputs.map((t) => ({ ...t, rows: of.batched !== false && t.shape[0] === -1 }));
    input = inputs.find(pictured) ?? null;
    buttons[0].hidden = buttons[1].hidden = !input;
    if (!json.value.trim() || inputs.length === 0) json.value = example(inputs);
    ready();
    if (inputs.length === 0) {
      show(none, true);
      show(kinds, false);
      show(json, false);
    }
    if (input) choose(wanted || (input.datatype === 'BYTES' || input.image ? 'image' : 'draw'));
  };
  answer.hidden = true;
  return node;
}

// pictured reports whether an input may be a picture: rows of [h, w], [h, w, c] or [c, h, w], or
// the bytes of a file.
function pictured(t) {
  if (t.image) return true;
  if (t.datatype === 'BYTES') return t.shape.length <= 1;
  return !!layout(t);
}

// layout finds height, width and channels among the dimensions of an input.
function layout({ datatype, shape, rows }) {
  if (!/^(U?INT|FP)/.test(datatype) || datatype === 'FP16') return null;
  const dims = rows ? shape.slice(1) : shape;
  const side = (n) => n === -1 || n >= 4;
  const colours = (n) => n === 1 || n === 3 || n === 4;
  if (dims.length === 2 && dims.every(side)) return { h: dims[0], w: dims[1], c: 1, flat: true };
  if (dims.length !== 3) return null;
  if (colours(dims[2]) && side(dims[0]) && side(dims[1])) return { h: dims[0], w: dims[1], c: dims[2] };
  if (colours(dims[0]) && side(dims[1]) && side(dims[2])) return { h: dims[1], w: dims[2], c: dims[0], first: true };
  return null;
}

// A picture for an input of open size is shrunk to this many pixels a side if it is larger, since
// its pixels are sent as JSON; the note says so.
const mostSide = 1024;

// pixels makes an input's values from a picture: integers are 0 to 255, floats 0 to 1.
function pixels(source, input, note) {
  const { h, w, c, flat, first } = layout(input);
  const natural = fit(source, mostSide);
  if ((w === -1 || h === -1) && natural.width < source.width) {
    setText(note, `The picture has ${source.width} x ${source.height} pixels, and is sent with ${natural.width} x ${natural.height}: this page sends at most ${mostSide} a side. shivactl infer sends all.`);
  }
  const width = w === -1 ? natural.width : w, height = h === -1 ? natural.height : h;
  const canvas = el('canvas', { width, height }), paper = canvas.getContext('2d');
  paper.imageSmoothingQuality = 'high';
  paper.drawImage(source, 0, 0, width, height);
  const { data } = paper.getImageData(0, 0, width, height);
  const scale = input.datatype.startsWith('FP') ? 1 / 255 : input.datatype === 'INT8' ? 127 / 255 : 1;
  const whole = input.datatype.startsWith('FP') ? (v) => v : Math.round;
  const at = (y, x, k) => {
    const i = 4 * (y * width + x);
    return whole(scale * (c === 1 ? 0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2] : data[i + k]));
  };
  const list = (n, one) => Array.from({ length: n }, (_, i) => one(i));
  const plane = (k) => list(height, (y) => list(width, (x) => at(y, x, k)));
  const row = flat ? plane(0) : first ? list(c, plane) : list(height, (y) => list(width, (x) => list(c, (k) => at(y, x, k))));
  return input.rows ? [row] : row;
}

// fit is the size of a picture scaled so that no side is longer than most.
function fit({ width, height }, most) {
  const scale = Math.min(1, most / Math.max(width, height));
  return { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) };
}

const png = (canvas) => new Promise((made) => canvas.toBlob(made, 'image/png'));

function base64(bytes) {
  let text = '';
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}

// example makes example inputs, with one row of zeros.
function example(inputs) {
  const value = ({ datatype, shape }) => {
    const leaf = datatype === 'BYTES' ? 'text' : datatype === 'BOOL' ? false : 0;
    const dims = shape.map((n) => (n === -1 ? 1 : n));
    if (dims.reduce((a, b) => a * b, 1) > 4096) return [];
    return dims.reduceRight((inner, n) => Array.from({ length: n }, () => inner), leaf);
  };
  const all = inputs.length === 1 ? value(inputs[0]) : Object.fromEntries(inputs.filter((t) => !t.optional).map((t) => [t.name, value(t)]));
  return JSON.stringify(all);
}

// chooser is a place to drop or choose a picture, and picked is called at each choice. Its picture
// is a promise, as a large one takes a moment to be decoded: null if it cannot be.
function chooser(fault, picked) {
  const file = el('input', { type: 'file', accept: 'image/*', 'aria-label': 'Choose a picture' });
  const preview = el('canvas', { 'aria-label': 'What is sent', role: 'img', hidden: true, class: 'preview' });
  const node = el('div', { class: 'drop' }, el('p', {}, 'Drop a picture here, or choose one.'), file, preview);
  const decode = async (blob) => {
    setText(fault, '');
    const bitmap = await createImageBitmap(blob).catch(() => null);
    show(preview, !!bitmap);
    if (!bitmap) {
      setText(fault, 'This is not a picture that the browser can read.');
      return null;
    }
    Object.assign(preview, fit(bitmap, 280));
    preview.getContext('2d').drawImage(bitmap, 0, 0, preview.width, preview.height);
    return { blob, bitmap };
  };
  const pick = ([blob]) => {
    if (!blob) return;
    node.picture = Promise.resolve(node.picture).then(() => decode(blob)); // the last choice counts
    picked();
  };
  file.addEventListener('change', () => pick(file.files));
  node.addEventListener('dragover', (e) => { e.preventDefault(); node.classList.add('over'); });
  node.addEventListener('dragleave', () => node.classList.remove('over'));
  node.addEventListener('drop', (e) => {
    e.preventDefault();
    node.classList.remove('over');
    pick(e.dataTransfer.files);
  });
  return node;
}

// drawing is a square to draw in: white on black, as digits are in most datasets.
function drawing() {
  const side = 224;
  const canvas = el('canvas', { width: side, height: side, class: 'paper', tabindex: '0', role: 'img', 'aria-label': 'A square to draw in: with the pointer, or by the arrow keys with the space bar held down' });
  const paper = canvas.getContext('2d', { willReadFrequently: true });
  const clear = () => {
    paper.fillStyle = '#000';
    paper.fillRect(0, 0, side, side);
  };
  let last = null, pen = { x: side / 2, y: side / 2 }, down = false;
  const line = (from, to) => {
    Object.assign(paper, { strokeStyle: '#fff', lineWidth: side / 9, lineCap: 'round' });
    paper.beginPath();
    paper.moveTo(from.x, from.y);
    paper.lineTo(to.x, to.y);
    paper.stroke();
  };
  const place = (e) => ({ x: (e.offsetX * side) / canvas.clientWidth, y: (e.offsetY * side) / canvas.clientHeight });
  canvas.addEventListener('pointerdown', (e) => {
    canvas.setPointerCapture(e.pointerId);
    last = place(e);
    line(last, last);
  });
  canvas.addEventListener('pointermove', (e) => {
    if (!last) return;
    const now = place(e);
    line(last, now);
    last = now;
  });
  for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, () => { last = null; });
  canvas.addEventListener('keydown', (e) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (e.key === ' ') down = true;
    else if (!step) return;
    e.preventDefault();
    const to = step ? { x: Math.min(side, Math.max(0, pen.x + 8 * step[0])), y: Math.min(side, Math.max(0, pen.y + 8 * step[1])) } : pen;
    if (down) line(pen, to);
    pen = to;
  });
  canvas.addEventListener('keyup', (e) => { if (e.key === ' ') down = false; });
  clear();
  const node = el('div', { class: 'drawing' }, canvas, el('button', { type: 'button', onclick: clear }, 'Clear'));
  node.canvas = canvas;
  return node;
}

// result shows an answer.
function result() {
  const head = el('p', { class: 'answer' }), over = el('div'), times = el('ul', { class: 'times' }), outputs = el('div');
  const node = el('div', { class: 'result', role: 'status' }, head, over, times, outputs);
  node.fill = (a, all, picture) => {
    node.hidden = false;
    over.replaceChildren(...[picture && found(picture, a.outputs)].filter(Boolean));
    setText(head, headline(a));
    const parts = [
      ['queue', a.queue_seconds], ['execute', a.execute_seconds], ['rest of the server', Math.max(0, a.total_seconds - a.queue_seconds - a.execute_seconds)], ['outside the server', Math.max(0, all - a.total_seconds)],
    ];
    times.replaceChildren(...parts.map(([name, s], i) => {
      const bar = el('span', { class: 'stretch' });
      bar.style.width = `${(100 * s) / Math.max(all, 1e-9)}%`;
      bar.style.background = `var(--c${i})`;
      return el('li', {}, el('span', {}, name), el('span', { class: 'value' }, took(s)), bar);
    }));
    const notes = [`${took(all)} in all, in a batch of ${a.batch_rows || 1}`];
    if (a.confidence !== undefined) notes.push(`confidence ${share(a.confidence)}`);
    if (a.default_explanation) notes.push(`the default: ${a.default_explanation}`);
    for (const [m, reason] of Object.entries(a.missing_models ?? {})) notes.push(`without ${m}: ${reason}`);
    outputs.replaceChildren(el('p', { class: 'quiet' }, notes.join(' · ')), ...a.outputs.map(output));
  };
  return node;
}

// headline is the answer in a few words, if it is short enough.
function headline(a) {
  const by = `${a.model}/${a.version}`;
  const single = a.outputs.filter((o) => o.elements === 1);
  return single.length ? `${single.map((o) => `${o.name}: ${o.data[0]}`).join(', ')} (${by})` : `answered by ${by}`;
}

function output(o) {
  const name = el('h3', {}, `${o.name} `, el('span', { class: 'quiet' }, `${o.datatype} [${o.shape.join(', ')}]`));
  const numbers = o.data.every((v) => typeof v === 'number');
  if (o.elements > 1 && o.elements <= 1000 && numbers && o.datatype.startsWith('FP') && o.shape.length <= 2) {
    // A score for each class: the highest ones.
    const top = o.data.map((v, i) => [i, v]).sort((a, b) => b[1] - a[1]).slice(0, 10);
    const most = Math.max(...top.map(([, v]) => Math.abs(v)), 1e-12);
    const list = el('ul', { class: 'bars', 'aria-label': `Highest values of ${o.name}` });
    each(list, top, ([i]) => i, ([i, v]) => {
      const bar = el('span');
      bar.style.width = `${(100 * Math.max(0, v)) / most}%`;
      return el('li', {}, el('span', { class: 'name' }, String(i)), el('span', { class: 'meter' }, bar), el('span', { class: 'value' }, rate(v)));
    });
    return el('div', {}, name, list);
  }
  const left = o.elements - o.data.length;
  return el('div', {}, name, el('pre', { tabindex: '0', role: 'region', 'aria-label': `Values of ${o.name}` }, JSON.stringify(o.data) + (left > 0 ? ` and ${left} more` : '')));
}
