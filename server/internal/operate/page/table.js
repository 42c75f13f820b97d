// Tables: they can be sorted by their columns, and show that they scroll.

import { each, el, setClass, setText, show } from './dom.js';

// table makes a table of columns {name, class, cell(item) or node(item), by(item): what to sort
// by, row(item): the class of its row}; fill(list, most) shows a list, or the first rows of it.
// order is {column, down}: what it is sorted by, at first and, as it is changed in place, from then
// on; none: the list has an order of its own. reordered is called when the user sorts.
export function table(label, columns, key, empty, order, reordered) {
  const body = el('tbody');
  const nothing = el('p', { class: 'quiet nothing' }, empty);
  const heads = columns.map((c) =>
    head(c, order, () => {
      fill(...shown);
      reordered?.();
    }),
  );
  const grid = el('table', {}, el('thead', {}, el('tr', {}, ...heads)), body);
  const whole = el('div', { class: 'table' }, sideways(label, grid), nothing);
  whole.firstChild.hidden = nothing.hidden = true; // until it is known what there is
  let shown = [[]];
  const fill = (...now) => {
    shown = now;
    const [items, most = Infinity] = now;
    show(whole.firstChild, items.length > 0);
    show(nothing, items.length === 0);
    for (const h of heads) h.update?.();
    const ranked = sorted(
      items,
      columns.find((c) => c.name === order?.column),
      order?.down,
    );
    each(body, ranked.slice(0, most), key, (item) => row(columns, item));
  };
  whole.fill = fill;
  return whole;
}

function head(column, order, changed) {
  if (!column.by) return el('th', { scope: 'col', class: column.class }, column.name);
  const node = el(
    'th',
    { scope: 'col', class: column.class },
    el(
      'button',
      {
        type: 'button',
        class: 'sort',
        onclick: () => {
          // At first, words are sorted from a on, and numbers from the largest.
          order.down = order.column === column.name ? !order.down : column.class === 'number';
          order.column = column.name;
          changed();
        },
      },
      column.name,
    ),
  );
  node.update = () => {
    const is = order.column === column.name ? (order.down ? 'descending' : 'ascending') : 'none';
    if (node.getAttribute('aria-sort') !== is) node.setAttribute('aria-sort', is);
  };
  node.update();
  return node;
}

const alphabet = new Intl.Collator('en', { numeric: true });

// sorted sorts a list; what has no value comes last, whichever the direction.
export function sorted(list, column, down) {
  if (!column?.by) return list;
  const none = (v) => v === null || v === undefined;
  return list
    .map((item) => [column.by(item), item])
    .sort(([a], [b]) => {
      if (none(a) || none(b)) return none(a) - none(b);
      const order = typeof a === 'string' ? alphabet.compare(a, b) : a - b;
      return down ? -order : order;
    })
    .map(([, item]) => item);
}

// sideways is a box that scrolls what is wider than it is, with the keyboard, too, and says so.
export function sideways(label, content) {
  const box = el('div', { class: 'scroll', role: 'region', 'aria-label': label }, content);
  const hint = el('p', { class: 'hint', 'aria-hidden': 'true', hidden: true }, 'more to the right →');
  const look = () => {
    const left = box.scrollLeft > 1,
      right = box.scrollWidth - box.clientWidth - box.scrollLeft > 1;
    box.classList.toggle('left', left);
    box.classList.toggle('right', right);
    show(hint, left || right);
    setText(hint, right ? 'more to the right →' : '← more to the left');
    if (left || right) box.setAttribute('tabindex', '0');
    else box.removeAttribute('tabindex');
  };
  box.addEventListener('scroll', look, { passive: true });
  // In the next frame, since the hint may move what is observed.
  const watch = new ResizeObserver(() => requestAnimationFrame(look));
  watch.observe(box);
  watch.observe(content);
  return el('div', {}, box, hint);
}

function row(columns, first) {
  const updates = [];
  const node = el('tr');
  for (const c of columns) {
    const cell = el(c.head ? 'th' : 'td', { class: c.class, scope: c.head ? 'row' : undefined });
    node.append(cell);
    if (c.node) {
      const inner = c.node(first);
      cell.append(inner);
      updates.push((item) => inner.update?.(item));
    } else {
      updates.push((item) => setText(cell, c.cell(item)));
    }
    if (c.row) updates.push((item) => setClass(node, c.row(item)));
  }
  node.update = (item) => updates.forEach((update) => update(item));
  return node;
}
