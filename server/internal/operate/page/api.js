// Requests to the door. The token belongs to the tab. It goes into a header, never into an address.

const key = 'shivad.token';

export const token = {
  get: () => sessionStorage.getItem(key) ?? '',
  set: (text) => sessionStorage.setItem(key, text),
  clear: () => sessionStorage.removeItem(key),
};

// A Refusal is the error of a request that the server refused.
export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function headers(more = {}) {
  const shown = token.get();
  return shown ? { ...more, Authorization: `Bearer ${shown}` } : more;
}

// refusal returns the error of an answer, in the server's words if it has any.
export async function refusal(answer) {
  let text = `${answer.status} ${answer.statusText}`;
  try {
    text = (await answer.json()).error ?? text;
  } catch { /* it is not JSON: something else answers at this address */ }
  return new Refusal(answer.status, text);
}

// ask sends a request and returns the JSON of its answer.
export async function ask(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: headers(method === 'GET' ? {} : { 'Content-Type': 'application/json' }),
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}
