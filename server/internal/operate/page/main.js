// The page: it watches the server, and shows the view that the address selects.

import { ask, headers, token } from './api.js';
import { setText, show } from './dom.js';
import { matches } from './format.js';
import { head } from './head.js';
import { History } from './history.js';
import { Minute } from './minute.js';
import { Watch } from './stream.js';
import { repaint } from './plots.js';
import { overview } from './overview.js';
import { model } from './model.js';
import { findings } from './verdict.js';
import { activity } from './activity.js';
import { settings } from './settings.js';
import { metrics } from './metrics.js';

const at = (id) => document.getElementById(id);

// fresh is what the page knows of a server at first; now has the last minute of each model, and
// lost says that the server does not answer, and found what is wrong.
function fresh() {
  return { history: new History(), minute: new Minute(), now: null, lost: false, found: [] };
}

const page = {
  // The server's latest events, by their names.
  state: fresh(),
  rights: [],
  may: (right, name) => page.rights.some((r) => r === right || (right === 'admin:read' && r === 'admin:write') || (name && r.startsWith(`${right}:`) && matches(r.slice(right.length + 1), name))),
  signIn,
};

let view = null, edition = '', painting = false;

const watch = new Watch({
  since: () => page.state.history.last(),
  event(name, value) {
    const { state } = page;
    if (name === 'end') {
      signIn(value.error);
      return;
    }
    if (name === 'past') {
      state.history.fill(value);
      return;
    }
    state[name] = value;
    if (name === 'status') {
      state.history.add(value, state.applications?.apps);
      state.now = state.minute.add(value);
    }
    if (document.hidden) { // no frame is drawn, but the tab has an icon
      paint();
      return;
    }
    if (painting) return;
    painting = true;
    requestAnimationFrame(() => {
      painting = false;
      paint();
    });
  },
  up() {
    page.state.lost = false;
    show(at('notice'), false);
    if (page.away) arrive();
    page.away = 0;
  },
  down(error) {
    if (error.status === 401) {
      signIn(error.message);
      return false;
    }
    page.away ||= Date.now();
    notice(`${error.status ? error.message : 'The server does not answer'}. The data shown is from ${new Date(page.away).toLocaleTimeString('en-GB')}; the page tries again every few seconds.`);
    page.state.lost = true;
    paint();
    return true;
  },
});

function notice(text) {
  setText(at('notice'), text);
  show(at('notice'), true);
}

// arrive asks for the identity, at first and after each interruption: it may be another server.
async function arrive() {
  try {
    const me = await ask('GET', '/v1/whoami');
    page.rights = me.may;
    setText(at('who'), me.identity ?? '');
    show(at('signout'), token.get() !== '');
    show(at('signin'), token.get() === '' && !!me.identity);
    if (!page.may('admin:read') && me.identity) {
      signIn(`Identity "${me.identity}" lacks the right admin:read.`);
      return false;
    }
  } catch (error) {
    if (error.status === 401) {
      signIn(token.get() ? error.message : undefined);
      return false;
    } // otherwise the server is unreachable, and the watch says so
  }
  const answer = await fetch('/', { method: 'HEAD', headers: headers({ Accept: 'text/html' }) }).catch(() => null);
  const tag = answer?.headers.get('ETag') ?? '';
  if (edition && tag && tag !== edition) location.reload(); // another version of the page
  edition ||= tag;
  return true;
}

function signIn(why) {
  watch.stop();
  if (why) setText(at('login-why'), why);
  const dialog = at('login');
  if (!dialog.open) dialog.showModal();
  show(at('signin'), true);
  show(at('signout'), false);
}

at('login').addEventListener('submit', () => {
  token.set(at('token').value.trim());
  at('token').value = '';
  start();
});
at('signin').addEventListener('click', () => signIn());
at('signout').addEventListener('click', () => {
  token.clear();
  page.state = fresh();
  route();
  signIn('You have signed out.');
});
at('theme').addEventListener('click', () => {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.theme === 'dark' ? 'light' : 'dark';
  localStorage.setItem('shivad.theme', dataset.theme);
  repaint();
});

async function start() {
  if (await arrive()) watch.start();
}

const views = { '': () => overview(page), activity, settings, metrics };
let place = '';

// route makes the view for the address: #/, #/activity, #/settings, #/metrics or
// #/model/NAME/VERSION.
function route() {
  const [kind = '', name = '', version = ''] = parts(location.hash.replace(/^#\//, ''));
  const ofModel = kind === 'model' && name;
  view?.close();
  view = ofModel ? model(page, name, version) : (Object.hasOwn(views, kind) ? views[kind] : views[''])();
  at('main').replaceChildren(view);
  place = ofModel ? (version ? `${name}/${version}` : name) : document.querySelector(`nav [data-view="${CSS.escape(kind)}"]`)?.textContent ?? '';
  for (const link of document.querySelectorAll('nav a[data-view]')) {
    if (link.dataset.view === (kind || 'overview')) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  watch.of(ofModel ? name : '');
  paint();
}

// parts are the names in an address; one that was cut off within a letter is that of the overview.
function parts(address) {
  try {
    return address.split('/').map(decodeURIComponent);
  } catch {
    return [];
  }
}

function paint() {
  const { state } = page;
  if (state.status) state.found = findings(state);
  head(state, place);
  if (!document.hidden) view?.update(state);
}

document.addEventListener('visibilitychange', () => document.hidden || paint());

addEventListener('hashchange', () => {
  route();
  at('main').focus();
});
route();
start();
