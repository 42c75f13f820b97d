// The page's nodes. They are made once and changed in place, so that the focus and selected text
// survive each second.

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'class') node.className = value;
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

export function setText(node, text) {
  text = String(text);
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// each keeps the children of a node equal to a list, by key. make(item) makes a child, which has an
// update(item) if it can change, and a close() if something else holds it.
export function each(parent, list, key, make) {
  const known = parent.kept ??= new Map();
  const held = document.activeElement;
  const wanted = new Set(list.map(key));
  for (const [k, node] of known) {
    if (wanted.has(k)) continue;
    node.close?.();
    node.remove();
    known.delete(k);
  }
  let at = parent.firstElementChild;
  for (const item of list) {
    const k = key(item);
    let node = known.get(k);
    if (!node) {
      node = make(item);
      known.set(k, node);
    }
    node.update?.(item);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  // A node loses the focus when it moves.
  if (held !== document.activeElement && parent.contains(held)) held.focus({ preventScroll: true });
}

// dot is a state as a coloured point and a word: kind(item) is good, warn, bad or off.
export function dot(kind, word) {
  const text = el('span');
  const node = el('span', { class: 'dot off' }, text);
  node.update = (item) => {
    setClass(node, `dot ${kind(item)}`);
    setText(text, word(item));
  };
  return node;
}

// panel is a section of the page with a heading. Its parts have labels of their own.
export function panel(title, ...children) {
  return el('section', { class: 'panel' }, el('h2', {}, title), ...children);
}

// bars is a list of words with a number and a bar each, the largest first.
export function bars(label, empty) {
  const list = el('ul', { class: 'bars', 'aria-label': label });
  const nothing = el('p', { class: 'quiet nothing' }, empty);
  const node = el('div', {}, list, nothing);
  node.fill = (items) => {
    const top = Math.max(1e-12, ...items.map((i) => i.value));
    show(nothing, items.length === 0);
    show(list, items.length > 0);
    each(list, items, (i) => i.name, (i) => {
      const name = el('span', { class: 'name' }), value = el('span', { class: 'value' });
      const meter = el('span', { class: `meter ${i.kind ?? ''}` }, el('span'));
      const one = el('li', {}, name, meter, value);
      one.update = (now) => {
        setText(name, now.label ?? now.name.replaceAll('_', ' '));
        setText(value, now.text);
        meter.firstChild.style.width = `${(100 * now.value) / (now.of ?? top)}%`;
        if (now.color) meter.firstChild.style.background = now.color;
      };
      return one;
    });
  };
  return node;
}
