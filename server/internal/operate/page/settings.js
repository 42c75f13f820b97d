// What the server was told: limits with their use, identities, and the settings in effect.

import { ask } from './api.js';
import { el, setText, show } from './dom.js';
import { fold } from './fold.js';
import { count, plural, size } from './format.js';
import { say } from './sentences.js';
import { table } from './table.js';

const again = 10_000; // ms from one question for the settings to the next

const unset = (v) =>
  v === '' ||
  v === 0 ||
  v === '0s' ||
  v === '0B' ||
  v === null ||
  (typeof v === 'object' && Object.keys(v).length === 0);

// flat lists the settings of a configuration by their keys, as the file has them.
export function flat(value, key = '') {
  const below = (k) => (key ? `${key}.${k}` : k);
  if (Array.isArray(value) && value.some((v) => v !== null && typeof v === 'object'))
    return value.flatMap((v, i) => flat(v, `${key}[${v.name ?? i}]`));
  if (value !== null && typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length > 0)
    return Object.entries(value).flatMap(([k, v]) => flat(v, below(k)));
  return [{ key, value }];
}

// settingTable lists settings; those that have no value only if that is asked for.
export function settingTable(label) {
  const search = el('input', {
    type: 'search',
    'aria-label': `Search ${label.toLowerCase()}`,
    placeholder: 'Search',
    autocomplete: 'off',
    spellcheck: 'false',
  });
  const every = el('input', { type: 'checkbox' });
  const rows = table(
    label,
    [
      { name: 'Setting', head: true, class: 'setting', cell: (s) => s.key },
      { name: 'Value', class: 'detail', cell: (s) => (unset(s.value) ? 'not set' : say(s.value)) },
    ],
    (s) => s.key,
    'No setting is like this.',
  );
  let all = [];
  const look = () => {
    const text = search.value.trim().toLowerCase();
    rows.fill(all.filter((s) => (every.checked || !unset(s.value)) && s.key.toLowerCase().includes(text)));
  };
  search.addEventListener('input', look);
  every.addEventListener('change', look);
  const node = el(
    'div',
    {},
    el('div', { class: 'tools' }, search, el('label', {}, every, ' also those that are not set')),
    rows,
  );
  node.fill = (list) => {
    all = list;
    look();
  };
  return node;
}

export function settings() {
  const fault = el('p', { class: 'bad', role: 'alert', hidden: true });
  const limits = table(
    'Limits',
    [
      { name: 'What', head: true, cell: (l) => l.name },
      { name: 'In use', class: 'number', cell: (l) => l.used },
      { name: 'Limit', class: 'number', cell: (l) => l.limit },
      { name: 'Refused', class: 'number', cell: (l) => l.refused ?? '–' },
      { name: 'Setting', class: 'setting', cell: (l) => l.setting },
    ],
    (l) => l.name,
    'There are no limits.',
  );
  const identities = table(
    'Identities',
    [
      { name: 'Identity', head: true, cell: (i) => i.name },
      { name: 'May', class: 'detail', cell: (i) => i.may.join(', ') || 'nothing' },
      { name: 'Known by', cell: known },
      {
        name: 'Quota',
        class: 'detail',
        cell: (i) =>
          Object.entries(i.quota)
            .filter(([, v]) => !unset(v))
            .map(([k, v]) => `${k} ${v}`)
            .join(', ') || 'none',
      },
      { name: 'Requests', class: 'number', cell: (i) => count(i.client?.requests) },
      {
        name: 'In flight',
        class: 'number',
        cell: (i) => count(i.client?.quotas.find((q) => q.quota === 'requests_in_flight')?.used),
      },
      { name: 'Refused', class: 'number', cell: (i) => count(i.client?.quotas.reduce((sum, q) => sum + q.refused, 0)) },
    ],
    (i) => i.name,
    'No identities are declared: every client may do everything.',
  );
  const all = settingTable('Settings');
  const ofLimits = fold('Limits', true, limits),
    ofIdentities = fold('Identities', true, identities),
    ofAll = fold('Settings', true, all);
  const node = el(
    'div',
    { class: 'view' },
    el('h2', { class: 'hidden' }, 'Settings'),
    fault,
    ofLimits,
    ofIdentities,
    ofAll,
  );
  let config = null,
    asked = -Infinity;
  const read = () =>
    ask('GET', '/v1/config')
      .then((got) => {
        config = got;
        show(fault, false);
        const { identity, ...rest } = got;
        const list = flat(rest);
        all.fill(list);
        ofAll.say(
          `${count(list.filter((s) => !unset(s.value)).length)} in effect; they change with the file, shivactl reload, or shivactl models`,
        );
        ofIdentities.say(identity?.length ? `${count(identity.length)} declared` : 'none');
      })
      .catch((error) => {
        setText(fault, error.message);
        show(fault, true);
      });
  node.update = ({ status }) => {
    if (!status) return;
    // Now there is a token, if one is needed. A reload or another run may change the settings.
    if (performance.now() - asked > again) {
      asked = performance.now();
      read();
    }
    if (!config) return;
    limits.fill(bounds(status, config));
    ofLimits.say('what may be taken, and what is');
    identities.fill(
      (config.identity ?? []).map((i) => ({
        ...i,
        client: status.clients.find((c) => c.name === `identity "${i.name}"`),
      })),
    );
  };
  node.close = () => {};
  return node;
}

function known(i) {
  const parts = [];
  if (i.token_sha256.length) parts.push(plural(i.token_sha256.length, 'token'));
  if (i.certificate.length) parts.push(`certificates of ${i.certificate.join(', ')}`);
  return parts.join('; ') || (i.name === 'anonymous' ? 'nothing: it is everybody else' : 'nothing');
}

// bounds are the limits that something of is in use now.
function bounds(status, config) {
  const { payload_bytes: payload, newest, shared_bytes: shared, regions, doors, sessions } = status;
  const list = [
    {
      name: 'Payload memory',
      used: size(payload.used),
      limit: size(payload.limit),
      refused: count(payload.refused),
      setting: 'limits.payload_bytes',
    },
  ];
  if (shared.limit)
    list.push({
      name: 'Memory shared with containers',
      used: size(shared.inputs),
      limit: size(shared.limit),
      setting: 'of limits.payload_bytes',
    });
  if (newest.limit)
    list.push({
      name: 'Newest answers of streams',
      used: size(newest.bytes),
      limit: size(newest.limit),
      setting: 'limits.latest_bytes',
    });
  if (regions.limit)
    list.push({
      name: 'Regions of clients',
      used: count(regions.used),
      limit: count(regions.limit),
      refused: count(regions.refused),
      setting: 'shared_memory.regions',
    });
  for (const d of doors)
    list.push({
      name: `Connections through ${d.name}`,
      used: count(d.connections),
      limit: config[d.name]?.connections ? count(config[d.name].connections) : 'none',
      setting: `${d.name}.connections`,
    });
  list.push({
    name: 'Containers',
    used: count(sessions.length),
    limit: count(config.containers.sessions),
    setting: 'containers.sessions',
  });
  return list;
}
