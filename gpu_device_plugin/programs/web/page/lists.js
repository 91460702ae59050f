/** Shows pods in lists: those that wait, with the reasons, and a person's own where nodes cannot be read. */

import { age, secondsSince } from "./amounts.js";
import { podToOpen } from "./cluster.js";
import { lookOf } from "./colours.js";
import { html, reconciling } from "./dom.js";
import { problemPlace, problemSubject, stateSaying } from "./sayings.js";
import { say, t } from "./words.js";

const MOST_PROBLEMS = 100;
const podName = ({ namespace, name }) => `${namespace}/${name}`;

/** The head of a pod in a list. `open` (ns, pod): it was chosen. */
function headOf(pod, open, rest = null) {
  return html`<div class="wait-head">
      <span class=${`swatch ${lookOf(pod.namespace)}`} aria-hidden="true"></span>
      <button class="pod-name" type="button" @click=${() => open(pod.namespace, pod.name)}>${podName(pod)}</button>
      ${rest}
    </div>`;
}

/** Shows the pods that wait, the oldest first, as a generator for `Slices`. `open` (ns, pod): one was chosen. */
export function* showWaiting(list, waits, open) {
  const ordered = [...waits].sort((a, b) => (a.since ?? "").localeCompare(b.since ?? ""));
  yield* reconciling(list, ordered, podName, (wait) => {
    const seconds = secondsSince(wait.since);
    const asks = [wait.asks && t("asked_for", { asks: say(wait.asks) }), wait.scheduler].filter(Boolean).join(" · ");
    const since = html`<span class="wait-age">${!Number.isNaN(seconds) && t("waits_for", { age: age(seconds) })}</span>`;
    return html`<li class="wait">
        ${headOf(wait, open, since)}
        <span class="wait-asks">${asks}</span>
        <p class="wait-why">${say(wait.why)}</p>
        ${wait.room && html`<p class="wait-room">${say(wait.room)}</p>`}
      </li>`;
  });
}

/** Shows what asks for attention, as a generator for `Slices`: each opens its pod, or its node. */
export function* showProblems(list, problems, open) {
  const keyOf = ({ kind, node, gpu, part }) => [kind, node?.name, gpu?.uuid ?? gpu?.index, part?.namespace, part?.name].join(" ");
  const more = problems.length - MOST_PROBLEMS;
  const shown = more > 0 ? [...problems.slice(0, MOST_PROBLEMS), { kind: "more", more }] : problems;
  yield* reconciling(list, shown, keyOf, (problem) => {
    if (problem.kind === "more") return html`<li class="wait" data-kind="more"><p class="note note-bad">${t("more", { n: problem.more })}</p></li>`;
    const pod = problem.part && podToOpen(problem.part);
    const chosen = () => (pod ? open.pod(...pod) : open.node(problem.node.name));
    return html`<li class="wait" data-kind=${problem.kind}>
        <div class="wait-head">
          <button class="pod-name" type="button" @click=${chosen}>${problemSubject(problem)}</button>
          <span class="wait-age">${problemPlace(problem)}</span>
        </div>
        <p class="note note-bad">${stateSaying(problem.node, problem.state, "problem")}</p>
      </li>`;
  });
}

/** Shows the pods of a person who may not read nodes, as a generator for `Slices`. */
export function* showAlone(list, pods, open) {
  yield* reconciling(list, pods, podName, (pod) => {
    const instances = Object.entries(pod.instances || {}).map(([resource, n]) => `${n} × ${resource}`);
    const has = [pod.shares && t("shares", { n: pod.shares }), pod.wholeGpus && `${pod.wholeGpus} × ${t("legend_whole")}`, ...instances, pod.node, pod.phase];
    return html`<li class="wait">${headOf(pod, open)}<span class="wait-asks">${has.filter(Boolean).join(" · ")}</span></li>`;
  });
}
