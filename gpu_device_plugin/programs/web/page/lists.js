/** Shows pods in lists: those that wait, with the reasons, and a person's own where nodes cannot be read. */

import { age, secondsSince } from "./amounts.js";
import { lookOf } from "./colours.js";
import { make, reconciling, setClass, setText } from "./dom.js";
import { t } from "./words.js";

const pieces = new WeakMap();

/** Shows the pods that wait, the oldest first, as a generator for `Slices`. `open` (ns, pod): one was chosen. */
export function* showWaiting(list, waits, open) {
  const ordered = [...waits].sort((a, b) => (a.since ?? "").localeCompare(b.since ?? ""));
  yield* reconciling(list, ordered, (wait) => `${wait.ns}/${wait.pod}`, () => makeWait(open), updateWait);
}

function makeWait(open) {
  const to = {
    pod: make("button", { class: "pod-name", type: "button" }),
    asks: make("span", { class: "wait-asks" }),
    age: make("span", { class: "wait-age" }),
    why: make("p", { class: "wait-why" }),
    room: make("p", { class: "wait-room" }),
    swatch: make("span", { "aria-hidden": "true" }),
    opened: null,
  };
  to.pod.addEventListener("click", () => open(...to.opened));
  const item = make("li", { class: "wait" }, make("div", { class: "wait-head" }, to.swatch, to.pod, to.age), to.asks, to.why, to.room);
  pieces.set(item, to);
  return item;
}

function updateWait(item, wait) {
  const to = pieces.get(item);
  to.opened = [wait.ns, wait.pod];
  setClass(to.swatch, "swatch", lookOf(wait.ns));
  setText(to.pod, `${wait.ns}/${wait.pod}`);
  setText(to.asks, [wait.asks && t("asked_for", { asks: wait.asks }), wait.scheduler].filter(Boolean).join(" · "));
  setText(to.why, wait.why ?? "");
  setText(to.room, wait.room ?? "");
  to.room.hidden = !wait.room;
  const seconds = secondsSince(wait.since);
  setText(to.age, Number.isNaN(seconds) ? "" : t("waits_for", { age: age(seconds) }));
}

/** Shows the pods of a person who may not read nodes, as a generator for `Slices`. */
export function* showAlone(list, pods, open) {
  yield* reconciling(list, pods, (pod) => `${pod.ns}/${pod.pod}`, () => makeAlone(open), updateAlone);
}

function makeAlone(open) {
  const to = { pod: make("button", { class: "pod-name", type: "button" }), rest: make("span", { class: "wait-asks" }), swatch: make("span", { "aria-hidden": "true" }), opened: null };
  to.pod.addEventListener("click", () => open(...to.opened));
  const item = make("li", { class: "wait" }, make("div", { class: "wait-head" }, to.swatch, to.pod), to.rest);
  pieces.set(item, to);
  return item;
}

function updateAlone(item, pod) {
  const to = pieces.get(item);
  to.opened = [pod.ns, pod.pod];
  setClass(to.swatch, "swatch", lookOf(pod.ns));
  setText(to.pod, `${pod.ns}/${pod.pod}`);
  const instances = Object.entries(pod.instances || {}).map(([resource, n]) => `${n} × ${resource}`);
  const has = [pod.shares && t("shares", { n: pod.shares }), pod.gpus && `${pod.gpus} × ${t("legend_whole")}`, ...instances, pod.node, pod.phase];
  setText(to.rest, has.filter(Boolean).join(" · "));
}
