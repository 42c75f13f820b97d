// Numbers in readable form. A number and its unit stay in one line.

const digits = (n, most) => Number(n.toPrecision(most));

// rate formats a number with three digits at most.
export function rate(n) {
  if (n === null || n === undefined) return '–';
  if (n > 0 && n < 0.01) return 'under 0.01';
  if (n < 1) return String(Number(n.toFixed(2)));
  for (const unit of ['', 'k', 'M', 'G']) {
    if (n < 999.5 || unit === 'G') return `${digits(n, 3)}${unit}`;
    n /= 1000;
  }
}

// perSecond formats a number per second; one that is seldom, per minute.
export function perSecond(n) {
  if (n === null || n === undefined) return '–';
  if (n === 0) return '0';
  if (n >= 1) return `${rate(n)}/s`;
  return `${rate(60 * n)}/min`;
}

const whole = new Intl.NumberFormat('en');

export const count = (n) => whole.format(n ?? 0);

// took formats a span of time, in seconds, with two digits or so.
export function took(s) {
  if (s === null || s === undefined) return '–';
  if (s <= 0) return '0\u00a0s';
  if (s < 1e-6) return 'under 1\u00a0µs';
  if (s < 1e-3) return `${digits(s * 1e6, 2)}\u00a0µs`;
  if (s < 1) return `${digits(s * 1e3, s < 0.1 ? 2 : 3)}\u00a0ms`;
  if (s < 120) return `${digits(s, s < 10 ? 2 : 3)}\u00a0s`;
  if (s < 7200) return `${Math.round(s / 60)}\u00a0min`;
  if (s < 172800) return `${digits(s / 3600, 2)}\u00a0h`;
  return `${Math.round(s / 86400)}\u00a0d`;
}

export function share(x) {
  if (x === null || x === undefined) return '–';
  if (x > 0.9995 && x < 1) return '>99.9\u00a0%';
  if (x > 0 && x < 1e-4) return 'under 0.01\u00a0%';
  if (x < 0.01) return `${Number((100 * x).toFixed(2))}\u00a0%`;
  return `${digits(100 * x, 3)}\u00a0%`;
}

export function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; bytes >= 1024 && i < units.length - 1; i++) bytes /= 1024;
  return `${digits(bytes, 3)}\u00a0${units[i]}`;
}

// lately is the time that the figures of a minute are about, which is shorter at first.
export const lately = ({ span }) => `the last ${span < 55 ? took(Math.round(span)) : 'minute'}`;

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`;

export const words = (key) => key.replaceAll('_', ' ');

// moment formats a time of today, or a day and a time.
export function moment(text) {
  const at = new Date(text), now = new Date();
  const time = at.toLocaleTimeString('en-GB');
  return at.toDateString() === now.toDateString() ? time : `${at.toLocaleDateString('en-CA')} ${time}`;
}

// listed joins words: a, b and c; no more than most of them are named.
export function listed(list, most = 3) {
  const named = list.length > most ? [...list.slice(0, most), `${count(list.length - most)} more`] : list;
  return named.length < 2 ? named.join('') : `${named.slice(0, -1).join(', ')} and ${named.at(-1)}`;
}

// id tells a version of a model from all others; that of what composes models ends with a slash.
export const id = (m) => `${m.name}/${m.version}`;

// byId finds the models of a list by their ids.
export const byId = (list = []) => new Map(list.map((m) => [id(m), m]));

// title is the name of a model or an application on the page.
export const title = (m) => (m.version ? `${m.name}/${m.version}` : m.name);

// matches reports whether a right's pattern may match a name. Only the server knows about brackets.
export function matches(pattern, name) {
  if (/[[\\]/.test(pattern)) return true;
  const text = pattern.replace(/[.+^${}()|\]]/g, '\\$&').replaceAll('*', '[^/]*').replaceAll('?', '[^/]');
  return new RegExp(`^${text}$`, 'u').test(name);
}
