/** Says how old the shown data is, and when the connection is lost and back. */

import { age } from "./amounts.js";
import { show } from "./dom.js";
import { say, t } from "./words.js";

const STALE_S = 15;

/** The state of the connection, in the head of the page and in its banner. */
export class Status {
  #at;
  #read = null;
  #heard = 0;
  #lost = null;
  #wasLive = false;

  /** @param at {status, text, lost, lostText, said}: the elements */
  constructor(at) {
    this.#at = at;
    setInterval(() => this.show(), 1000);
  }

  /** An event came; `read` as the server tells it, if it does. */
  heard(read) {
    if (this.#lost) this.say(t("back"));
    this.#lost = null;
    this.#heard = Date.now();
    if (read) this.#read = read;
    this.#wasLive ||= Boolean(read?.live);
    this.show();
  }

  /** Whether the cluster has been read as a whole: before that nothing can be lost, and nothing is missing. */
  get wasLive() {
    return this.#wasLive;
  }

  /** The connection ended. `why`: a sentence. `nextMs`: until the next try. */
  lost(why, nextMs) {
    const first = !this.#lost;
    this.#lost = { why, next: Date.now() + nextMs };
    this.show();
    if (first) this.say(this.#isLost);
  }

  /** Tells a screen reader; the one place that does, and only for what has to be known at once. */
  say(sentence) {
    show(this.#at.said, sentence);
  }

  get #isLost() {
    const { why } = this.#lost;
    return t(this.#wasLive ? "lost" : "not_yet", { why: why && t("lost_why", { why: why.replace(/[.。]$/, "") }) });
  }

  show() {
    const { status, text, lost, lostText } = this.#at;
    lost.hidden = !this.#lost;
    lost.classList.toggle("banner-bad", this.#wasLive);
    const known = this.#read !== null;
    const ageS = known ? (this.#read.ageS ?? 0) + (Date.now() - this.#heard) / 1000 : 0;
    if (this.#lost) {
      const next = Math.max(0, Math.ceil((this.#lost.next - Date.now()) / 1000));
      show(lostText, [this.#isLost, known && t("lost_shown", { age: age(ageS) }), t("lost_again", { n: next })].filter(Boolean).join(" "));
    }
    const behind = known && (!this.#read.live || ageS > STALE_S);
    status.className = `status ${this.#wasLive ? (this.#lost || behind ? "status-bad" : "status-live") : ""}`.trim();
    if (!known) show(text, this.#lost ? t("not_yet", { why: "" }) : t("connecting"));
    else if (!this.#wasLive) show(text, [t("starting"), this.#read.why?.code !== "being-read" && say(this.#read.why ?? "")].filter(Boolean).join(": "));
    else if (this.#lost) show(text, t("data_age", { age: age(ageS) }));
    else if (behind) show(text, `${t("behind", { age: age(ageS) })}${this.#read.why ? `: ${say(this.#read.why)}` : ""}`);
    else show(text, `${t("live")} · ${t("data_age", { age: age(ageS) })}`);
  }
}
