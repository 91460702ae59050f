/** Does long work in slices, at most one a frame, so that the page is painted and answers people meanwhile. */

// Far below the 50 ms from which on people notice.
const SLICE_MS = 12;

/** Work that is done again whenever it is asked for. */
export class Slices {
  #begin;
  #done;
  #sliceMs;
  #work = null;
  #again = false;
  #startMs = 0;

  /**
   * @param begin returns the work as a generator: after each `yield` a frame may come between
   * @param done ({start}), after all of it: when it began
   * @param sliceMs shorter for what takes long to lay out
   */
  constructor(begin, { done = () => {}, sliceMs = SLICE_MS } = {}) {
    this.#begin = begin;
    this.#done = done;
    this.#sliceMs = sliceMs;
  }

  /** Does the work. What is being done goes on to its end, and is then done once more. */
  ask() {
    if (this.#work) this.#again = true;
    else this.restart();
  }

  /** Does the work from its beginning: what is being done has become wrong as a whole. */
  restart() {
    const begun = this.#work !== null;
    this.#again = false;
    this.#startMs = 0;
    this.#work = this.#begin();
    if (!begun) this.#next();
  }

  /** Goes on after the next frame, whose painting is a task of its own then. A tab that is not seen has none. */
  #next() {
    requestAnimationFrame(() => setTimeout(() => this.#slice()));
  }

  #slice() {
    const begun = performance.now();
    this.#startMs ||= begun;
    let ended;
    try {
      do {
        ended = true; // so it is if something is thrown: the next one who asks begins anew
        ended = Boolean(this.#work.next().done);
      } while (!ended && performance.now() - begun < this.#sliceMs);
    } finally {
      if (ended) this.#work = null;
      else this.#next();
    }
    if (!ended) return;
    this.#done({ start: this.#startMs });
    if (this.#again) this.restart();
  }
}
