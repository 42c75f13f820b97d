// Numbers in readable form.

const digits = (n, most) => Number(n.toPrecision(most));

// rate formats a number with three digits or so.
export function rate(n) {
  if (n === null || n === undefined) return '–';
  return n < 1000 ? String(digits(n, 3)) : Math.round(n).toLocaleString('en');
}

export const count = (n) => (n ?? 0).toLocaleString('en');

// took formats a span of time, in seconds, with two digits or so.
export function took(s) {
  if (s === null || s === undefined) return '–';
  if (s <= 0) return '0 s';
  if (s < 1e-3) return `${digits(s * 1e6, 2)} µs`;
  if (s < 1) return `${digits(s * 1e3, s < 0.1 ? 2 : 3)} ms`;
  if (s < 120) return `${digits(s, s < 10 ? 2 : 3)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${digits(s / 3600, 2)} h`;
  return `${Math.round(s / 86400)} d`;
}

export function share(x) {
  if (x === null || x === undefined) return '–';
  if (x > 0.9995 && x < 1) return '>99.9 %';
  return `${digits(100 * x, 3)} %`;
}

export function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; bytes >= 1024 && i < units.length - 1; i++) bytes /= 1024;
  return `${digits(bytes, 3)} ${units[i]}`;
}

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`;

export const words = (key) => key.replaceAll('_', ' ');

// moment formats a time of today, or a day and a time.
export function moment(text) {
  const at = new Date(text), now = new Date();
  const time = at.toLocaleTimeString('en-GB');
  return at.toDateString() === now.toDateString() ? time : `${at.toLocaleDateString('en-CA')} ${time}`;
}

// title is the name of a model or an application on the page.
export const title = (m) => (m.version ? `${m.name}/${m.version}` : m.name);

// matches reports whether a right's pattern may match a name. Only the server knows about brackets.
export function matches(pattern, name) {
  if (/[[\\]/.test(pattern)) return true;
  const text = pattern.replace(/[.+^${}()|\]]/g, '\\$&').replaceAll('*', '[^/]*').replaceAll('?', '[^/]');
  return new RegExp(`^${text}$`, 'u').test(name);
}
