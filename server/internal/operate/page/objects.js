// What a detector found, drawn over the picture that it got: boxes with names, masks, points.

import { el } from './dom.js';

const mostSide = 900; // of the drawing, in pixels

// The colours of classes, as shivactl has them. White letters can be read on each.
const inks = ['#c62828', '#2e7d32', '#2f55d4', '#a65300', '#8e24aa', '#00707a', '#b0276f', '#5f6020'];

// drawn is a canvas with the picture and its objects, or null if the answer is that of no detector.
export function drawn(picture, outputs) {
  const found = objects(outputs);
  if (!found) return null;
  const canvas = el('canvas', { class: 'found', role: 'img' });
  const scale = Math.min(1, mostSide / Math.max(picture.width, picture.height));
  paint(canvas, found, picture, scale, (paper) => paper.drawImage(picture, 0, 0, canvas.width, canvas.height));
  return canvas;
}

// sketch is a canvas for objects without their picture, whose size is not known: it has room for
// all that have been drawn so far.
export function sketch() {
  const canvas = el('canvas', { class: 'found sketch', role: 'img' });
  const room = { width: 0, height: 0 };
  canvas.draw = (found) => {
    for (const { corners, points } of found) {
      for (const [x, y] of [...corners, ...points]) {
        room.width = Math.max(room.width, x);
        room.height = Math.max(room.height, y);
      }
    }
    const side = Math.max(room.width, room.height);
    paint(canvas, found, { width: room.width || 4, height: room.height || 3 }, 480 / (side || 4));
  };
  return canvas;
}

function paint(canvas, found, { width, height }, scale, ground) {
  canvas.width = Math.max(1, Math.round(width * scale)); // this clears it, too
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.setAttribute('aria-label', said(found));
  const paper = canvas.getContext('2d');
  ground?.(paper);
  for (const one of found) if (one.mask) paper.drawImage(tinted(one), 0, 0, canvas.width, canvas.height);
  for (const one of found) outline(paper, one, scale);
  for (const one of found) plate(paper, one, scale);
}

// objects are those of the first row, whose outputs are lists of the same length.
export function objects(outputs) {
  const by = Object.fromEntries(outputs.map((o) => [o.name, o]));
  const { boxes, scores, classes, labels, corners, keypoints, masks } = by;
  if (!boxes || !scores || !labels || boxes.shape.length !== 2 || boxes.shape[1] !== 4 || labels.datatype !== 'BYTES') return null;
  const part = (o, i) => {
    const n = o ? o.elements / Math.max(1, o.shape[0]) : 0;
    const of = o?.data.slice(i * n, (i + 1) * n) ?? [];
    return n > 0 && of.length === n ? of : null; // the end of a long list is not shown
  };
  const pairs = (list, n) => (list ? Array.from({ length: list.length / n }, (_, i) => list.slice(i * n, (i + 1) * n)) : []);
  const found = [];
  for (let i = 0; i < boxes.shape[0]; i++) {
    const box = part(boxes, i), corner = pairs(part(corners, i), 2);
    if (!box) break;
    const [x0, y0, x1, y1] = box;
    found.push({
      label: labels.data[i] ?? '', score: scores.data[i] ?? 0, ink: inks[Math.abs(classes?.data[i] ?? 0) % inks.length], box,
      corners: corner.length ? corner : [[x0, y0], [x1, y0], [x1, y1], [x0, y1]],
      points: pairs(part(keypoints, i), keypoints?.shape.at(-1) ?? 2).filter(([, , seen = 1]) => seen >= 0.5),
      mask: mask(part(masks, i)?.[0]),
    });
  }
  return found;
}

// mask reads the runs of a mask, as COCO writes them: their differences to the run before the last,
// in digits of five bits, the lowest first.
export function mask(text) {
  try {
    const { size: [height, width], counts } = JSON.parse(text);
    const runs = [];
    for (let i = 0; i < counts.length;) {
      let value = 0, place = 0, digit;
      do {
        digit = counts.charCodeAt(i++) - 48;
        value += (digit & 31) * 2 ** place;
        place += 5;
      } while (digit & 32);
      if (digit & 16) value -= 2 ** place;
      runs.push(value + (runs.length > 2 ? runs.at(-2) : 0));
    }
    return runs.reduce((a, b) => a + b, 0) === height * width && runs.every((n) => n >= 0) ? { height, width, runs } : null;
  } catch {
    return null; // there is none, or its text was too long to be shown
  }
}

// tinted is the pixels of an object in its colour. Runs go down the columns.
function tinted({ mask: { height, width, runs }, ink }) {
  const canvas = el('canvas', { width, height }), paper = canvas.getContext('2d');
  paper.fillStyle = ink;
  paper.globalAlpha = 0.45;
  let at = 0;
  runs.forEach((run, i) => {
    for (let left = i % 2 ? run : 0, from = at; left > 0;) {
      const x = Math.floor(from / height), y = from % height, n = Math.min(left, height - y);
      paper.fillRect(x, y, 1, n);
      from += n;
      left -= n;
    }
    at += run;
  });
  return canvas;
}

function outline(paper, { ink, corners, points }, scale) {
  paper.strokeStyle = paper.fillStyle = ink;
  paper.lineWidth = 2;
  paper.beginPath();
  for (const [x, y] of corners) paper.lineTo(x * scale, y * scale);
  paper.closePath();
  paper.stroke();
  for (const [x, y] of points) {
    paper.beginPath();
    paper.arc(x * scale, y * scale, 3, 0, 2 * Math.PI);
    paper.fill();
  }
}

// plate writes the name of an object above its box, or inside where there is no room above.
function plate(paper, { label, score, ink, box: [x, y] }, scale) {
  const text = `${label} ${score.toFixed(2)}`, high = 17;
  paper.font = '13px sans-serif';
  const wide = paper.measureText(text).width + 6;
  const left = Math.max(0, Math.min(x * scale, paper.canvas.width - wide)), top = y * scale < high ? y * scale : y * scale - high;
  paper.fillStyle = ink;
  paper.fillRect(left, top, wide, high);
  paper.fillStyle = '#fff';
  paper.fillText(text, left + 3, top + 13);
}

const said = (found) => (found.length ? `Found: ${found.map((o) => `${o.label} ${o.score.toFixed(2)}`).join(', ')}` : 'Nothing was found');
