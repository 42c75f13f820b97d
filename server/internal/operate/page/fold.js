// Parts of the page that fold. What its user has opened or closed stays so in this browser.

import { el, setClass, setText } from './dom.js';

const key = 'shivad.folds';

function read() {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? {};
  } catch {
    return {}; // it is not ours
  }
}

// fold is a part with a title, which is open at first or not. say(text, kind) says beside the
// title what it is about, so that one that is closed tells, too.
export function fold(title, open, ...children) {
  const note = el('span', { class: 'note' });
  const node = el(
    'details',
    { class: 'panel', open: read()[title] ?? open },
    el('summary', {}, el('h2', {}, title), note),
    ...children,
  );
  node.addEventListener('toggle', () => {
    if (node.open) draw();
    const folds = read();
    if (node.open === (folds[title] ?? open)) return;
    folds[title] = node.open;
    localStorage.setItem(key, JSON.stringify(folds));
  });
  // fill draws what is in the part; while it is closed, not until it opens.
  let draw = () => {};
  node.fill = (now) => {
    draw = now;
    if (node.open) draw();
  };
  node.say = (text, kind = '') => {
    setText(note, text);
    setClass(note, `note ${kind}`);
  };
  return node;
}
