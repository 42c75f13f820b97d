// The head of the page, and the tab: which server this is, and how it is.

import { each, el, setClass, setText } from './dom.js';
import { took } from './format.js';
import { word } from './verdict.js';

const at = (id) => document.getElementById(id);

// The endpoints by their keys in the status, and what they are called.
const endpoints = {
  tcp: 'Shiva',
  rest: 'HTTP',
  grpc: 'gRPC',
  frigate: 'Frigate',
  containers: 'containers',
  containers_v1b: 'containers v1b',
  containers_v2: 'containers v2',
  containers_v2a: 'containers v2a',
  admin: 'admin',
  health: 'health',
};

// head shows a state; view is the name of what is looked at, "" for the whole.
export function head(state, view) {
  const { status } = state;
  if (!status) {
    if (state.lost) pill('no connection', 'bad');
    return;
  }
  setText(at('host'), status.host || location.host);
  setText(at('version'), `shivad ${status.version} · up ${took(status.uptime_seconds)}`);
  const list = Object.entries(endpoints)
    .filter(([key]) => status.listen[key]?.length)
    .map(([key, name]) => ({ name, where: [status.listen[key]].flat().join(', ') }));
  each(
    at('addresses'),
    list,
    (a) => a.name,
    (a) => {
      const where = el('code');
      const node = el('li', {}, `${a.name} `, where);
      node.update = (now) => setText(where, now.where);
      return node;
    },
  );
  const [text, kind] = word(state);
  pill(text, kind);
  tab(`${view ? `${view} · ` : ''}${status.host || 'shivad'} · ${location.host} · shivad ${status.version}`, kind);
}

function pill(text, kind) {
  setText(at('health'), text);
  setClass(at('health'), `pill ${kind}`);
}

// tab names the tab, and marks it while something is wrong.
function tab(title, kind) {
  const text = kind === 'good' ? title : `(!) ${title}`;
  if (document.title !== text) document.title = text;
  const icon = document.querySelector('link[rel=icon][type="image/svg+xml"]'),
    file = kind === 'good' ? '/page/icon.svg' : '/page/icon-alert.svg';
  if (icon.getAttribute('href') !== file) icon.setAttribute('href', file);
}
