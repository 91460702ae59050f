/** Tells the server which nodes a person looks at, so that it asks for their figures first. */

import { ask, Refused } from "./server.js";

const PAUSE_MS = 1_000;
// What the server takes at once.
const MOST = 450;
const MOST_LETTERS = 48_000;

/** What is looked at, told a while after it has changed. */
export class Looking {
  #nodes;
  #stream = "";
  #told = "";
  #timer = 0;

  /** @param nodes returns names of nodes, those first that matter most */
  constructor(nodes) {
    this.#nodes = nodes;
  }

  /** The stream of events that the page follows from now on; of a server that does not ask for it: undefined. */
  follow(stream) {
    this.#stream = stream ?? "";
    this.#told = "";
    this.changed();
  }

  /** Something else may be looked at now. */
  changed() {
    if (this.#stream) this.#timer ||= setTimeout(() => this.#tell(), PAUSE_MS);
  }

  async #tell() {
    this.#timer = 0;
    const nodes = [];
    let letters = 0;
    for (const name of new Set(this.#nodes())) {
      letters += name.length + 3;
      if (nodes.length === MOST || letters > MOST_LETTERS) break;
      nodes.push(name);
    }
    const body = JSON.stringify({ stream: this.#stream, nodes });
    if (body === this.#told) return;
    this.#told = body;
    try {
      await ask("view", { body });
    } catch (error) {
      // Figures are a little older then. A stream that has ended is told of elsewhere.
      if (!(error instanceof Refused)) throw error;
    }
  }
}

/** The names of those children of `parent` that are in the window; they stand in rows from above to below. */
export function inWindow(parent) {
  const found = [];
  for (const child of parent.children) {
    const { top, bottom } = child.getBoundingClientRect();
    if (top >= innerHeight) break;
    if (bottom > 0) found.push(child.dataset.node);
  }
  return found;
}
