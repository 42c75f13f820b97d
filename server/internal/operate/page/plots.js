// Plots, drawn by uPlot. A plot is a node with fill(data): columns, the first of which is x.

import { el } from './dom.js';

// clock formats times of day, with parts of seconds where a plot covers few of them.
const clock = (list) => list.map((v) => {
  const at = new Date(1000 * v), text = at.toLocaleTimeString('en-GB');
  return list.at(-1) - list[0] < list.length - 1 ? `${text.slice(3)}.${String(at.getMilliseconds()).padStart(3, '0').slice(0, 2)}` : text;
});

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// color returns the nth of the colours that can be told apart in either theme.
export const color = (n) => css(`--c${n % 8}`);

const live = new Set();

// repaint redraws all plots in the colours of another theme.
export function repaint() {
  for (const plot of live) plot.paint();
}

// steps are the values of 1, 2 and 5 times a power of ten from low to high; only the powers where
// those would be too many.
export function steps(low, high) {
  const list = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const n of [1, 2, 5]) list.push(Number(`${n}e${power}`));
  }
  const within = list.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  return within.length > 7 ? within.filter((v) => Math.log10(v) % 1 === 0) : within;
}

// wide is the range of a logarithmic axis: from a step to a step, and a decade at least.
function wide(low, high) {
  if (!(low > 0)) return [0.001, 0.01];
  const below = steps(low / 10, low).findLast((v) => v <= low) ?? low;
  const above = steps(high, high * 10).find((v) => v >= high) ?? high;
  return [below, Math.max(above, 10 * below)];
}

const tint = (one) => `color-mix(in srgb, ${one} 13%, transparent)`;

// plot makes one. options: height, title, series [{label, n (of its colour), width, points, fill,
// dash, value(v)}], x and y {value(v), range, log: a logarithmic axis}, empty (what to say without
// data).
export function plot(options) {
  const canvas = el('div', { class: 'canvas', role: 'img', 'aria-label': options.title, hidden: true }), height = options.height ?? 180;
  canvas.style.height = `${height}px`; // what is drawn must not change the size that is observed
  const key = el('p', { class: 'key', 'aria-hidden': 'true' });
  const nothing = el('p', { class: 'quiet nothing' }, options.empty ?? 'Nothing yet.');
  const node = el('figure', { class: 'plot' }, el('figcaption', {}, options.title), canvas, key, nothing);
  let drawn = null, data = null, series = options.series, width = 0;

  const axis = ({ value = String, values = (list) => list.map((v) => (v === null ? '' : value(v))), size = 60, space = 40, log }) => ({
    stroke: css('--quiet'), grid: { stroke: css('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui', size, gap: 4,
    values: (_, list) => values(list), space, ...(log && { splits: (_, i, low, high) => steps(low, high), filter: (_, list) => list }),
  });
  const paint = () => {
    drawn?.destroy();
    drawn = null;
    if (!data || !width) return;
    const { x = {}, y = {} } = options;
    drawn = new uPlot({
      width, height,
      legend: { show: false }, cursor: { y: false, drag: { x: false, y: false } },
      scales: {
        x: { time: !x.value, range: x.range },
        y: { distr: y.log ? 3 : 1, range: y.log ? (_, low, high) => wide(low, high) : y.range ?? ((_, low, high) => [0, (high ?? 0) * 1.05 || 1]) },
      },
      axes: [axis({ ...(x.value ? x : { values: clock }), size: 28, space: 80 }), axis(y)],
      series: [{}, ...series.map((s) => ({
        label: s.label, stroke: color(s.n), width: s.width ?? 1.5, dash: s.dash, fill: s.fill && tint(color(s.n)), paths: s.width === 0 ? () => null : undefined,
        points: { show: s.points ?? false, size: 5, width: 1, fill: color(s.n), stroke: color(s.n) }, spanGaps: s.spanGaps ?? false,
      }))],
      hooks: { setCursor: [(u) => legend(u.cursor.idx)] },
    }, data, canvas);
    legend(null);
  };
  // The legend names the series, with their values under the pointer or else the last ones.
  const legend = (at) => {
    const i = at ?? data[0].length - 1;
    key.replaceChildren(...series.map((s, n) => {
      const v = data[n + 1]?.[i];
      const point = el('i', { class: s.dash ? 'dashed' : '' });
      point.style.borderColor = color(s.n);
      const text = options.values === false || v === null || v === undefined ? s.label : `${s.label} ${(s.value ?? options.y?.value ?? String)(v)}`;
      return el('span', {}, point, text);
    }));
  };

  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === width) return;
    width = now;
    if (drawn && width) drawn.setSize({ width, height });
    else paint();
  }).observe(canvas);

  node.paint = paint;
  node.fill = (columns, now = series) => {
    const some = columns.slice(1).some((c) => c.some((v) => v !== null && v !== undefined));
    nothing.hidden = some;
    canvas.hidden = key.hidden = !some;
    const same = now.length === series.length && now.every((s, i) => s.label === series[i].label);
    series = now;
    data = some ? columns : null;
    if (!some) return;
    if (!drawn || !same) paint();
    else {
      drawn.setData(data);
      legend(drawn.cursor.idx);
    }
  };
  node.say = (text) => canvas.getAttribute('aria-label') !== text && canvas.setAttribute('aria-label', text);
  live.add(node);
  node.close = () => {
    live.delete(node);
    drawn?.destroy();
  };
  return node;
}

// spark is a small line without axes.
export function spark(n) {
  const canvas = el('div', { class: 'spark', 'aria-hidden': 'true' });
  let drawn = null, data = [[0], [null]];
  const paint = () => {
    drawn?.destroy();
    drawn = new uPlot({
      width: 120, height: 32, legend: { show: false }, cursor: { show: false }, axes: [{ show: false }, { show: false }], padding: [2, 0, 2, 0],
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, 1e-9)] } },
      series: [{}, { stroke: color(n), width: 1.5, fill: tint(color(n)), points: { show: false } }],
    }, data, canvas);
  };
  canvas.paint = paint;
  canvas.fill = (columns) => {
    data = columns;
    if (drawn) drawn.setData(data);
    else paint();
  };
  canvas.close = () => {
    live.delete(canvas);
    drawn?.destroy();
  };
  live.add(canvas);
  return canvas;
}

