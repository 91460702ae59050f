/** Asks the server with the token of this tab. */

import { say } from "./words.js";

const KEY = "gpushare-token";

/** An answer that is not the one asked for. `status` 0: there was none. `sentence`: a message, or words. */
export class Refused extends Error {
  constructor(status, sentence, login) {
    super(say(sentence));
    this.status = status;
    this.login = login;
  }
}

/** Takes the token out of the address, where the command put it, before anything else can read it; says if there was one. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    setToken(given);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return Boolean(given);
}

export function setToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(KEY));
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

/** Asks for `path` under api/v1/, with a `body` if there is one. Throws Refused for another status than 200, and for none. */
export async function ask(path, { signal, body } = {}) {
  const token = sessionStorage.getItem(KEY);
  // A header holds Latin letters only; a token that has others is not one.
  const sent = token && /^[\x21-\x7e]+$/.test(token) ? { Authorization: `Bearer ${token}` } : {};
  let answer;
  try {
    answer = await fetch(`api/v1/${path}`, { method: body === undefined ? "GET" : "POST", body, headers: sent, signal, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, said?.error ?? `${answer.status} ${answer.statusText}`, said?.login);
}
