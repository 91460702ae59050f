/** The panel at the side of the page: shows one pod or one node, and gives the focus back when it closes. */

import { html, show } from "./dom.js";
import { t } from "./words.js";

/** The side panel of index.html. */
export class SidePanel {
  #root;
  #title;
  #body;
  #closed;
  #opener = null;
  #asked = null;

  /** @param closed is called when a person closed it */
  constructor(root, closed) {
    this.#root = root;
    this.#title = root.querySelector("h2");
    this.#body = root.querySelector(".side-panel-body");
    this.#closed = closed;
    root.querySelector(".side-panel-close").addEventListener("click", () => this.dismiss());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && this.isOpen) this.dismiss();
    });
  }

  get isOpen() {
    return !this.#root.hidden;
  }

  /** Whether its content can be another without taking away what a person reads, selects or has the focus on. */
  get isAtRest() {
    const reading = this.#body.contains(document.activeElement) || this.#body.querySelector("details[open] > pre, .incident[open], .plan > p:not(:empty)");
    return this.isOpen && !reading && (document.getSelection()?.isCollapsed ?? true);
  }

  /** Closes it, as a person does. */
  dismiss() {
    this.close();
    this.#closed();
  }

  close() {
    this.#asked?.abort();
    if (!this.isOpen) return;
    const focused = this.#root.contains(document.activeElement) || document.activeElement === document.body;
    this.#root.hidden = true;
    show(this.#body, null);
    if (focused) this.#giveBack();
    this.#opener = null;
  }

  /**
   * Opens it, or fills it anew.
   *
   * @param title a name
   * @param read (signal) returns templates; what it throws is said
   * @param again it shows this already: what cannot be read now leaves that as it is
   */
  async open(title, read, { again = false } = {}) {
    this.#asked?.abort();
    this.#asked = new AbortController();
    const { signal } = this.#asked;
    if (!this.isOpen) {
      const from = document.activeElement;
      this.#opener = from && from !== document.body ? { element: from, pod: from.dataset.pod, name: from.textContent } : null;
    }
    const first = !this.isOpen || this.#title.textContent !== title;
    show(this.#title, title);
    this.#root.hidden = false;
    if (first) {
      show(this.#body, html`<p class="quiet">${t("loading")}</p>`);
      this.#title.focus({ preventScroll: true });
    }
    let content;
    try {
      content = await read(signal);
    } catch (error) {
      if (signal.aborted || again) return;
      content = html`<p class="note note-bad">${error.message || t("unreachable")}</p>`;
    }
    if (!signal.aborted) show(this.#body, content);
  }

  /** Puts the focus on what opened it, or on what shows the same now. */
  #giveBack() {
    const { element, pod } = this.#opener ?? {};
    const again = pod && document.querySelector(`.part[data-pod="${CSS.escape(pod)}"]`);
    const to = element?.isConnected ? element : again || document.getElementById("main");
    to.focus({ preventScroll: true });
  }
}
