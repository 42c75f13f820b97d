// Changes to the server. Each asks for confirmation by a button that says what will happen.

import { ask } from './api.js';

const at = (id) => document.getElementById(id);

// sure asks whether to do what a button says.
export function sure(title, text) {
  const dialog = at('confirm');
  at('confirm-title').textContent = `${title}?`;
  at('confirm-text').textContent = text;
  at('confirm-yes').textContent = title;
  dialog.returnValue = 'no';
  dialog.showModal();
  return new Promise((decided) => dialog.addEventListener('close', () => decided(dialog.returnValue === 'yes'), { once: true }));
}

let clearing = 0;

export function say(text, bad = false) {
  const toast = at('toast');
  toast.textContent = text;
  toast.className = bad ? 'bad' : '';
  clearTimeout(clearing);
  clearing = setTimeout(() => { toast.textContent = ''; }, bad ? 15_000 : 5_000);
}

// change does something, if its button's user confirms: {method, path, body, ask (what will happen;
// none: nothing is lost), done (what to say)}.
export async function change(page, button, { method, path, body, ask: text, done }) {
  if (text && !await sure(button.getAttribute('aria-label') ?? button.textContent, text)) return;
  button.disabled = true;
  try {
    await ask(method, path, body);
    say(done);
  } catch (error) {
    say(error.message, true);
    if (error.status === 401) page.signIn(error.message);
  } finally {
    button.disabled = false;
  }
}
