/** Shows pods in lists: those that wait, with the reasons, and a person's own where nodes cannot be read. */

import { age, secondsSince } from "./amounts.js";
import { podToOpen } from "./cluster.js";
import { lookOf } from "./colours.js";
import { make, reconciling, setClass, setText } from "./dom.js";
import { problemPlace, problemSaying, problemSubject } from "./sayings.js";
import { serverSaying } from "./sentences.js";
import { t } from "./words.js";

const pieces = new WeakMap();
const podName = ({ namespace, name }) => `${namespace}/${name}`;

/** Shows the pods that wait, the oldest first, as a generator for `Slices`. `open` (ns, pod): one was chosen. */
export function* showWaiting(list, waits, open) {
  const ordered = [...waits].sort((a, b) => (a.since ?? "").localeCompare(b.since ?? ""));
  yield* reconciling(list, ordered, podName, () => makeWait(open), updateWait);
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
  to.opened = [wait.namespace, wait.name];
  setClass(to.swatch, "swatch", lookOf(wait.namespace));
  setText(to.pod, podName(wait));
  setText(to.asks, [wait.asks && t("asked_for", { asks: wait.asks }), wait.scheduler].filter(Boolean).join(" · "));
  setText(to.why, serverSaying(wait.why));
  setText(to.room, serverSaying(wait.room));
  to.room.hidden = !wait.room;
  const seconds = secondsSince(wait.since);
  setText(to.age, Number.isNaN(seconds) ? "" : t("waits_for", { age: age(seconds) }));
}

const MOST_PROBLEMS = 100;

/** Shows what asks for attention, as a generator for `Slices`: each opens its pod, or its node. */
export function* showProblems(list, problems, open) {
  const keyOf = ({ kind, node, gpu, part }) => [kind, node?.name, gpu?.uuid ?? gpu?.index, part?.namespace, part?.name].join(" ");
  const more = problems.length - MOST_PROBLEMS;
  const shown = more > 0 ? [...problems.slice(0, MOST_PROBLEMS), { kind: "more", more }] : problems;
  yield* reconciling(list, shown, keyOf, () => makeProblem(open), updateProblem);
}

function makeProblem(open) {
  const to = {
    subject: make("button", { class: "pod-name", type: "button" }),
    place: make("span", { class: "wait-age" }),
    saying: make("p", { class: "note note-bad" }),
    problem: null,
  };
  to.subject.addEventListener("click", () => {
    const pod = to.problem.part && podToOpen(to.problem.part);
    if (pod) open.pod(...pod);
    else open.node(to.problem.node.name);
  });
  const item = make("li", { class: "wait" }, make("div", { class: "wait-head" }, to.subject, to.place), to.saying);
  pieces.set(item, to);
  return item;
}

function updateProblem(item, problem) {
  const to = pieces.get(item);
  to.problem = problem;
  item.dataset.kind = problem.kind;
  const more = problem.kind === "more";
  to.subject.hidden = to.place.hidden = more;
  setText(to.subject, more ? "" : problemSubject(problem));
  setText(to.place, more ? "" : problemPlace(problem));
  setText(to.saying, more ? t("more", { n: problem.more }) : problemSaying(problem));
}

/** Shows the pods of a person who may not read nodes, as a generator for `Slices`. */
export function* showAlone(list, pods, open) {
  yield* reconciling(list, pods, podName, () => makeAlone(open), updateAlone);
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
  to.opened = [pod.namespace, pod.name];
  setClass(to.swatch, "swatch", lookOf(pod.namespace));
  setText(to.pod, podName(pod));
  const instances = Object.entries(pod.instances || {}).map(([resource, n]) => `${n} × ${resource}`);
  const has = [pod.shares && t("shares", { n: pod.shares }), pod.wholeGpus && `${pod.wholeGpus} × ${t("legend_whole")}`, ...instances, pod.node, pod.phase];
  setText(to.rest, has.filter(Boolean).join(" · "));
}
