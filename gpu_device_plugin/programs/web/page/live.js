/** Follows the cluster: keeps a stream of events open and says what becomes of it. */

import { parsed } from "./parsing.js";
import { ask, Refused } from "./server.js";

export const SILENCE_MS = 10_000;
const FIRST_MS = 1_000;
const LONGEST_MS = 30_000;

/** Reads a stream of server-sent events. Its time is proportional to what comes, however it is cut into pieces. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let begun = [];
  let name = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = value.split("\n");
      for (const [n, end] of lines.entries()) {
        begun.push(end);
        if (n === lines.length - 1) break; // its end has not come yet
        const line = begun.join("").replace(/\r$/, "");
        begun = [];
        if (line === "") {
          if (data.length) yield [name || "message", data.join("\n")];
          [name, data] = ["", []];
        } else if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** The stream of events of the cluster, opened again with growing delays whenever it ends. */
export class Live {
  #say;
  #silenceMs;
  #firstMs;
  #tries = 0;
  #running = null;
  #wake = () => {};

  /**
   * @param say.event (name, data) of each event; what it throws ends the stream as if it were lost
   * @param say.lost (why, nextTryMs); `why` is a word of the page ("silent", "ended", "unreachable") or a Refused
   * @param say.login (Refused): the server wants another token; following ends
   */
  constructor(say, { silenceMs = SILENCE_MS, firstMs = FIRST_MS } = {}) {
    this.#say = say;
    this.#silenceMs = silenceMs;
    this.#firstMs = firstMs;
  }

  start() {
    this.stop();
    this.#running = new AbortController();
    this.#follow(this.#running.signal);
  }

  stop() {
    this.#running?.abort();
    this.#wake();
  }

  /** Tries now instead of at the end of the delay. */
  now() {
    this.#wake();
  }

  async #follow(stopped) {
    while (!stopped.aborted) {
      const why = await this.#once(stopped);
      if (stopped.aborted) return;
      if (why instanceof Refused && why.status === 401) {
        this.#say.login(why);
        return;
      }
      // With some chance in it, so that a thousand pages do not come back in the same second.
      const delayMs = Math.min(LONGEST_MS, this.#firstMs * 2 ** this.#tries) * (0.75 + Math.random() / 2);
      this.#tries += 1;
      this.#say.lost(why, delayMs);
      await new Promise((resolve) => {
        this.#wake = resolve;
        setTimeout(resolve, delayMs);
      });
    }
  }

  /** Reads one stream to its end; returns why it ended. */
  async #once(stopped) {
    const one = new AbortController();
    const ended = AbortSignal.any([stopped, one.signal]);
    let silent = false;
    let timer;
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        silent = true;
        one.abort();
      }, this.#silenceMs);
    };
    listen();
    try {
      const answer = await ask("live", { signal: ended });
      for await (const [name, data] of events(answer.body)) {
        listen();
        this.#tries = 0;
        const told = await parsed(data);
        if (ended.aborted) break;
        this.#say.event(name, told);
      }
      return silent ? "silent" : "ended";
    } catch (error) {
      if (silent) return "silent";
      if (error instanceof Refused && error.status) return error;
      if (error instanceof Refused || ended.aborted || error instanceof TypeError) return "unreachable";
      // An event that cannot be understood: the console has it, and the next stream begins with the whole cluster.
      reportError(error);
      return "ended";
    } finally {
      clearTimeout(timer);
      one.abort();
    }
  }
}
