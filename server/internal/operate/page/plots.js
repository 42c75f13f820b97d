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

// plot makes one. options: height, title, series [{label, n (of its colour), width, points, fill,
// dash, value(v)}], x and y {value(v), range}, empty (what to say without data).
export function plot(options) {
  const canvas = el('div', { class: 'canvas', role: 'img', 'aria-label': options.title });
  const key = el('p', { class: 'key', 'aria-hidden': 'true' });
  const nothing = el('p', { class: 'quiet nothing' }, options.empty ?? 'Nothing yet.');
  const node = el('figure', { class: 'plot' }, el('figcaption', {}, options.title), canvas, key, nothing);
  let drawn = null, data = null, series = options.series, width = 0;

  const axis = ({ value = String, values = (list) => list.map((v) => (v === null ? '' : value(v))), size = 56, space = 40 }) => ({
    stroke: css('--quiet'), grid: { stroke: css('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui', size, gap: 4,
    values: (_, list) => values(list), space,
  });
  const paint = () => {
    drawn?.destroy();
    drawn = null;
    if (!data || !width) return;
    const { x = {}, y = {} } = options;
    drawn = new uPlot({
      width, height: options.height ?? 180,
      legend: { show: false }, cursor: { y: false, drag: { x: false, y: false } },
      scales: {
        x: { time: !x.value, range: x.range },
        y: { range: y.range ?? ((_, low, high) => [0, (high ?? 0) * 1.05 || 1]) },
      },
      axes: [axis({ ...(x.value ? x : { values: clock }), size: 28, space: 80 }), axis(y)],
      series: [{}, ...series.map((s) => ({
        label: s.label, stroke: color(s.n), width: s.width ?? 1.5, dash: s.dash, fill: s.fill && `${color(s.n)}22`, paths: s.width === 0 ? () => null : undefined,
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
    if (drawn && width) drawn.setSize({ width, height: options.height ?? 180 });
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
      series: [{}, { stroke: color(n), width: 1.5, fill: `${color(n)}22`, points: { show: false } }],
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

