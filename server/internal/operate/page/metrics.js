// The metrics as Prometheus reads them: a link to them could not send the token.

import { headers, refusal } from './api.js';
import { el, setText, show } from './dom.js';

export function metrics() {
  const fault = el('p', { class: 'bad', role: 'alert', hidden: true });
  const text = el('pre', { class: 'whole', tabindex: '0', role: 'region', 'aria-label': 'Metrics' });
  const search = el('input', {
    type: 'search',
    'aria-label': 'Search metrics',
    placeholder: 'Search metrics',
    autocomplete: 'off',
    spellcheck: 'false',
  });
  let lines = [];
  const look = () => {
    const wanted = search.value.trim().toLowerCase();
    setText(text, lines.filter((l) => l.toLowerCase().includes(wanted)).join('\n'));
  };
  const read = async () => {
    try {
      const answer = await fetch('/metrics', { headers: headers() });
      if (!answer.ok) throw await refusal(answer);
      lines = (await answer.text()).split('\n');
      look();
      show(fault, false);
    } catch (error) {
      setText(fault, error.message);
      show(fault, true);
    }
  };
  search.addEventListener('input', look);
  let asked = false;
  const node = el(
    'div',
    { class: 'view' },
    el(
      'section',
      { class: 'panel' },
      el('h2', {}, 'Metrics'),
      el(
        'p',
        { class: 'quiet' },
        'Prometheus reads them at ',
        el('code', {}, '/metrics'),
        '. The manual lists ',
        el('a', { href: '/manual/metrics' }, 'what each one counts'),
        '.',
      ),
      el('div', { class: 'tools' }, search, el('button', { type: 'button', onclick: read }, 'Read again')),
      fault,
      text,
    ),
  );
  node.update = ({ status }) => {
    if (status && !asked) read(); // now that there is a token, if one is needed
    asked ||= !!status;
  };
  node.close = () => {};
  return node;
}
