// The events of /v1/watch. An EventSource cannot send a token, so they are read by fetch.

import { headers, refusal } from './api.js';

const silence = 5000; // ms without an event, of which there is one each second
const waits = [500, 1000, 2000, 5000]; // ms before the next attempt

// events reads an answer of text/event-stream and calls on(name, text) for each event.
export async function events(body, on) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [], name = '', data = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    let text = value;
    for (let end; (end = text.indexOf('\n')) >= 0; text = text.slice(end + 1)) {
      const line = parts.join('') + text.slice(0, end);
      parts = [];
      if (line.startsWith('event: ')) name = line.slice(7);
      else if (line.startsWith('data: ')) data = line.slice(6);
      else if (line === '' && name) {
        on(name, data);
        name = data = '';
      }
    }
    if (text) parts.push(text);
  }
}

// changed returns a value after a change that the server has sent: {"=": VALUE} replaces it,
// another object has the changes of some members or elements, and all else is the new value. What
// has not changed is shared with the old value, which stays as it is.
export function changed(old, change) {
  if (change === null || typeof change !== 'object') return change;
  if ('=' in change) return change['='];
  const value = Array.isArray(old) ? [...old] : { ...old };
  for (const [name, one] of Object.entries(change)) value[name] = changed(old[name], one);
  return value;
}

const pause = 10_000, // ms after which a hidden page stops reading
  glances = 60_000; // ms between its looks from then on

// A Watch follows the server from the time that since() returns until it is stopped. It reconnects
// however long the server was unreachable. While the page is hidden it takes a look from time to
// time, for the icon of its tab.
export class Watch {
  constructor({ event, up, down, since }) {
    Object.assign(this, { event, up, down, since, model: '', attempt: 0, running: false });
    document.addEventListener('visibilitychange', () => this.look());
    addEventListener('online', () => this.again());
  }

  start() {
    this.running = true;
    this.again();
  }

  stop() {
    this.running = false;
    this.cut();
  }

  // of selects a model to watch besides the rest; '' for none.
  of(model) {
    if (model === this.model) return;
    this.model = model;
    if (this.running) this.again();
  }

  look() {
    clearTimeout(this.resting);
    this.glancing = false;
    if (document.hidden) this.resting = setTimeout(() => this.rest(), pause);
    else if (this.running && !this.reading) this.again();
  }

  // rest stops reading until the next look.
  rest() {
    this.cut();
    this.resting = setTimeout(() => {
      this.glancing = true;
      this.again();
    }, glances);
  }

  cut() {
    clearTimeout(this.timer);
    clearTimeout(this.dog);
    this.reading?.abort();
    this.reading = null;
  }

  again() {
    this.attempt = 0;
    this.read();
  }

  async read() {
    this.cut();
    if (!this.running) return;
    const mine = this.reading = new AbortController(), parts = {};
    try {
      const query = new URLSearchParams({ since: this.since(), changes: true });
      if (this.model) query.set('model', this.model);
      this.guard(mine);
      const answer = await fetch(`/v1/watch?${query}`, { headers: headers(), signal: mine.signal });
      if (!answer.ok) throw await refusal(answer);
      await events(answer.body, (name, text) => {
        if (mine !== this.reading) return;
        this.guard(mine);
        this.attempt = 0;
        const part = name.replace(/-change$/, '');
        parts[part] = part === name ? JSON.parse(text) : changed(parts[part], JSON.parse(text));
        if (part === 'status') this.up();
        this.event(part, parts[part]);
        if (part === 'status' && this.glancing) this.rest();
      });
      throw new Error('the server has ended the stream');
    } catch (error) {
      if (mine !== this.reading) return; // another reader has begun, or the page is hidden
      this.reading = null;
      clearTimeout(this.dog);
      if (this.down(error) === false) return;
      if (this.glancing) {
        this.rest();
        return;
      }
      const wait = waits[Math.min(this.attempt++, waits.length - 1)];
      this.timer = setTimeout(() => this.read(), wait);
    }
  }

  // guard gives up a stream that has gone silent, as when the network fails.
  guard(mine) {
    clearTimeout(this.dog);
    this.dog = setTimeout(() => mine.abort(new Error('the server is silent')), silence);
  }
}
