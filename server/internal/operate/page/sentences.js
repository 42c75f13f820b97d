// What somebody did, as a sentence.

import { words } from './format.js';

const did = {
  create: 'created',
  change: 'changed',
  delete: 'deleted',
  load: 'loaded',
  unload: 'unloaded',
  register: 'registered',
  unregister: 'unregistered',
  start: 'started',
  stop: 'stopped',
  restart: 'restarted',
  scale: 'scaled',
  retire: 'retired',
  clear: 'cleared',
  forget: 'cleared',
  reload: 'reloaded',
  import: 'imported',
};

const most = 300; // letters of what differs

// sentence says who did what, or tried to: "operator stopped the container blurred".
export function sentence(e) {
  const who = e.container
    ? `Container ${e.container}`
    : e.identity && e.identity !== 'anonymous'
      ? e.identity
      : e.address
        ? 'Somebody'
        : 'The server';
  const what = thing(e);
  if (e.refused) return `${who} may not ${verb(e)} ${what}: ${e.error}`;
  if (e.error) return `${who} could not ${verb(e)} ${what}: ${e.error}`;
  const more = differences(e);
  if (e.what === 'container' && e.action === 'register')
    return `${who} began to serve ${e.name}${more && ` (${more})`}`;
  if (e.what === 'container' && e.action === 'leave') {
    const { reason } = value(e.after) ?? {};
    return `${who} no longer serves ${e.name}${reason ? `: ${reason}` : ''}`;
  }
  return `${who} ${did[e.action] ?? e.action} ${what}${more && `: ${more}`}`;
}

const verb = (e) =>
  e.what === 'container' && e.action === 'register'
    ? 'serve'
    : e.what === 'path'
      ? `send ${e.action} to`
      : e.action === 'forget'
        ? 'clear'
        : e.action;

function thing(e) {
  if (e.what === 'path') return e.name;
  if (e.what === 'container' && e.action === 'register') return e.name;
  if (e.what === 'cache' || e.what === 'policy') return `the ${e.what} of ${e.name}`;
  return `the ${e.what}${e.name ? ` ${e.name}` : ''}`;
}

// value reads what an entry has of before or after; undefined: nothing, or it was too long.
function value(text) {
  try {
    return text ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

// plain writes the value of an attribute, which may be JSON, in words.
export const plain = (text) => (/^[[{]/.test(text) ? say(value(text) ?? text) : text);

// differences says what is different after an action.
function differences(e) {
  const before = value(e.before),
    after = value(e.after);
  const object = (v) => v !== null && typeof v === 'object' && !Array.isArray(v);
  let parts;
  if (e.action === 'delete' || e.what === 'policy') return '';
  if (object(after) && after.changed) parts = reloaded(after);
  else if (object(before) || object(after)) {
    const keys = new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})]);
    parts = [...keys]
      .filter((k) => k !== 'name' && JSON.stringify(before?.[k]) !== JSON.stringify(after?.[k]))
      .map((k) => step(words(k), object(before) ? before[k] : undefined, object(after) ? after[k] : undefined));
  } else if (after !== undefined) parts = [step('', before, after)];
  const text = (parts ?? []).filter(Boolean).join('; ');
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

function step(name, before, after) {
  const is = (v) => v === undefined || v === null || v === '' || (typeof v === 'object' && Object.keys(v).length === 0);
  if (is(before) && is(after)) return '';
  if (is(before)) return `${name} ${say(after)}`.trim();
  if (is(after)) return `${name} ${say(before)}`.trim();
  return `${name} from ${say(before)} to ${say(after)}`.trim();
}

// say writes a value in words, without the signs of JSON.
export function say(v) {
  if (Array.isArray(v))
    return v.map((one) => (one !== null && typeof one === 'object' && one.name ? one.name : say(one))).join(', ');
  if (v !== null && typeof v === 'object')
    return Object.entries(v)
      .map(([k, one]) => `${words(k)} ${say(one)}`)
      .join(', ');
  if (typeof v === 'boolean') return v ? 'yes' : 'no';
  return v === null || v === '' ? 'none' : /^[A-Z]+$/.test(v) ? v.toLowerCase() : String(v);
}

// reloaded says which settings a reload has changed, and which wait for the next start.
function reloaded({ changed, waiting }) {
  const list = (all) => all.map((s) => step(s.key, s.before, s.after)).join('; ');
  const parts = [changed.length ? list(changed) : 'nothing changed'];
  if (waiting?.length) parts.push(`from the next start on ${list(waiting)}`);
  return parts;
}
