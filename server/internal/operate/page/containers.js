// Containers: those of the file, which can be started and stopped, and those connected.

import { dot, el } from './dom.js';
import { fold } from './fold.js';
import { count, plural, took } from './format.js';
import { table } from './table.js';
import { change } from './actions.js';

const kinds = { READY: 'good', LOADING: 'warn', UNLOADING: 'warn', FAILING: 'bad', UNAVAILABLE: 'bad' };
const states = { serving: 'good', connecting: 'warn', draining: 'warn', leaving: 'warn', calling: 'warn' };

export function containers(page) {
  const declared = table('Containers of the configuration', [
    { name: 'Container', head: true, cell: (c) => c.name },
    { name: 'Model', cell: (c) => c.model },
    { name: 'State', node: () => dot((c) => kinds[c.state] ?? 'off', (c) => c.state.toLowerCase() + (c.reason || c.scaling?.why ? `: ${c.reason || c.scaling.why}` : '')) },
    { name: 'Processes', cell: (c) => c.processes.map((p) => `${p.state}${p.restarts ? `, ${plural(p.restarts, 'restart')}` : ''}`).join('; ') + (c.scaling ? ` (${c.scaling.min} to ${c.scaling.max})` : '') || '–' },
    { name: 'Actions', node: (c) => actions(page, c) },
  ], (c) => c.name, 'The configuration has no containers.');
  const connected = table('Connected containers', [
    { name: 'Model', head: true, cell: (s) => (s.model ? `${s.model}/${s.version}` : 'not registered') },
    { name: 'State', node: () => dot((s) => states[s.state] ?? 'bad', (s) => s.state) },
    { name: 'Instance', cell: (s) => s.instance ?? '–' },
    { name: 'From', cell: (s) => s.remote },
    { name: 'Protocol', cell: (s) => s.rpc + (s.arena ? ', shared memory' : '') },
    { name: 'In flight', class: 'number', cell: (s) => `${s.pending} of ${s.slots ?? '–'}` },
    { name: 'Batches', class: 'number', cell: (s) => count(s.batches) },
    { name: 'Failed', class: 'number', cell: (s) => count(s.failures) },
    { name: 'Oldest', class: 'number', cell: (s) => (s.pending ? took(s.oldest_seconds) : '–') },
    { name: 'Connected', class: 'number', cell: (s) => took(s.connected_seconds) },
  ], (s) => `${s.model} ${s.instance} ${s.remote}`, 'No container is connected.');
  const node = fold('Containers', false, el('h3', {}, 'Of the configuration'), declared, el('h3', {}, 'Connected'), connected);
  node.update = ({ containers: known, status }) => {
    if (!status) return;
    node.fill(() => {
      if (known) declared.fill(known.containers);
      connected.fill(status.sessions);
    });
    const sick = status.sessions.filter((s) => !(s.state in states)).length;
    node.say(sick ? `${count(sick)} of ${count(status.sessions.length)} not well` : `${count(status.sessions.length)} connected`, sick ? 'bad' : '');
  };
  return node;
}

function actions(page, first) {
  const path = (verb) => `/v1/containers/${encodeURIComponent(first.name)}/${verb}`;
  const button = (verb, label, ask) => el('button', {
    type: 'button', class: ask ? 'danger' : '', 'aria-label': `${label} ${first.name}`,
    onclick: (e) => change(page, e.currentTarget, { method: 'POST', path: path(verb), ask, done: `${first.name}: ${label.toLowerCase()} is done` }),
  }, label);
  const start = button('start', 'Start');
  const restart = button('restart', 'Restart', `The processes of ${first.name} are replaced one after the other, each when a new one is ready.`);
  const stop = button('stop', 'Stop', `Requests to ${first.model} that only ${first.name} serves fail until it is started again.`);
  const node = el('span', { class: 'actions' }, start, restart, stop);
  node.update = (c) => {
    const runs = c.processes.some((p) => p.pid);
    for (const b of [start, restart, stop]) b.hidden = !page.may('admin:write') || !!c.address;
    start.hidden ||= runs;
    restart.hidden ||= !runs;
    stop.hidden ||= !runs;
  };
  return node;
}
