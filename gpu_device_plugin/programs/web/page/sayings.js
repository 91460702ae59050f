/** Says what a bar, a part or a cell shows: for screen readers, and for the pointer that rests on it. */

import { age, ageOf, amount, memory, percent, secondsSince } from "./amounts.js";
import { gpuUseKnown, isWhole, modelsOf, partName, partsOf, partUseKnown, stateOf, useKnown } from "./cluster.js";
import { knows, t } from "./words.js";

const ENFORCEMENTS = ["partition", "driver", "dmem", "mps", "custom", "advisory"];

function joined(...parts) {
  return parts.filter(Boolean).join(t("list_comma"));
}

/** The pod of a part in words; also of one that the caller may not see. */
function podOf(part) {
  return partName(part) ?? t("part_hidden");
}

// How a parameter of a state is shown, by its name; of others as it is.
const SHOWN = { since: ageOf, until: (time) => age(-secondsSince(time)), limits: enforcementSaying };

/**
 * A state in words. `place`: "badge", "note" and "problem" have words of their own for some states, also for those with a certain
 * parameter. Of a state that the page has no words for it is what the server says.
 */
export function stateSaying(node, state, place = "state", values = {}) {
  const { code, text, parameters = {} } = state;
  const key = [place, "state"].flatMap((each) => [...Object.keys(parameters).map((name) => `${each}_${code}_${name}`), `${each}_${code}`]).find(knows);
  if (key === undefined) return text;
  const shown = Object.entries(parameters).map(([name, value]) => [name, name.endsWith("MiB") ? memory(value) : name === "shares" ? amount(node, value) : SHOWN[name]?.(value) ?? value]);
  const rest = code === "asked-to-return" && joined(parameters.until && t("part_until", { age: SHOWN.until(parameters.until) }), parameters.pod && t("part_needed", parameters));
  return joined(t(key, { usedMiB: "–", amountMiB: "–", grantedMiB: "–", by: "?", since: "?", ...Object.fromEntries(shown), ...values }), rest);
}

/** A GPU in words. */
export function gpuSaying(node, gpu) {
  const whole = isWhole(gpu);
  return joined(
    gpu.states && joined(...gpu.states.filter(({ code }) => code === "unhealthy" || code === "cordoned").map((state) => stateSaying(node, state))),
    t("bar_given", { given: amount(node, gpu.usedShares ?? 0), total: amount(node, gpu.totalShares) }),
    whole && t(gpu.mig ? "bar_whole_mig" : "bar_whole"),
    gpuUseKnown(node, gpu) && t("bar_used", { used: memory(gpu.usedMiB) }),
    !gpu.reason && t("bar_free", { free: amount(node, gpu.freeShares ?? 0) }),
    // A MIG instance is never given as a whole GPU, so that its shares in use keep nobody from that.
    gpu.usedShares > 0 && !whole && !gpu.mig && !gpu.reason && t("bar_fenced_whole"),
    whole && !gpu.resource && t("bar_fenced_shares"),
    ...partsOf(gpu).filter((part) => stateOf(part, "over")).map((part) => `${podOf(part)}: ${stateSaying(node, stateOf(part, "over"))}`),
  );
}

export function gpuName(gpu) {
  return `${placeOf(gpu)}${gpu.model ? `, ${gpu.model}` : ""}`;
}

/** The position of a GPU in words, and of a MIG instance its number too. */
export function placeOf(gpu) {
  return `${t("gpu_name", { i: gpu.index })}${gpu.mig ? ` (MIG ${migId(gpu)} ${gpu.mig.profile})` : ""}`;
}

/** The number of a MIG instance as nvidia-smi counts. */
export function migId(gpu) {
  return `${gpu.mig.gpu}:${gpu.mig.number}`;
}

/** A pod's part of a GPU in words. */
export function partSaying(node, gpu, part) {
  return joined(
    podOf(part),
    !part.trespassing && (part.whole ? t(gpu.mig ? "part_whole_mig" : "part_whole") : t("part_given", { amount: amount(node, part.shares) })),
    partUseKnown(node, part) && t("part_used", { amount: memory(part.usedMiB) }),
    part.smPercent !== undefined && t("part_sm", { percent: percent(part.smPercent / 100) }),
    part.limitMiB !== undefined && t("part_limit", { amount: memory(part.limitMiB) }),
    part.states && joined(...part.states.map((state) => stateSaying(node, state))),
    part.enforcement && enforcementSaying(part.enforcement),
    !part.whole && heldSaying(part),
  );
}

/** Whether the limit of a part holds, where no state says more of it. */
export function heldSaying({ held }) {
  return held && knows(`held_${held}`) && t(`held_${held}`);
}

export function enforcementSaying(enforcement) {
  return ENFORCEMENTS.includes(enforcement) ? t(`enforcement_${enforcement}`) : t("enforcement_other", { enforcement });
}

export function cellSaying(node, gpu) {
  return t("cell", { node: node.name, gpu: placeOf(gpu), rest: joined(closedSaying(node), gpuSaying(node, gpu)) });
}

/** What the means of limiting is worth; "" for one that this page does not know. */
export function enforcementHint(enforcement) {
  return ENFORCEMENTS.includes(enforcement) ? t(`enforcement_hint_${enforcement}`) : "";
}

/** Whom a problem is about: a pod, a GPU or a node. */
export function problemSubject({ node, gpu, part }) {
  return part ? podOf(part) : gpu ? t("gpu_at", { node: node.name, gpu: placeOf(gpu) }) : node.name;
}

/** Where it is, if its subject does not say so. */
export function problemPlace({ node, gpu, part }) {
  return part ? t("gpu_at", { node: node.name, gpu: placeOf(gpu) }) : "";
}

/** How much of a node is given. */
export function givenSaying(node) {
  const { givenMiB, totalMiB } = node.sums ?? {};
  const [given, total] = totalMiB ? [memory(givenMiB ?? 0), memory(totalMiB)] : [amount(node, node.usedShares ?? 0), amount(node, node.totalShares ?? 0)];
  return t("sum_of", { given, total });
}

/** The states of a node that are badges of its card. */
export function badgesOf(node) {
  return (node.states ?? []).filter(({ code }) => knows(`badge_${code}`));
}

/** Why pods are not scheduled to a node, in words; "" if they are. */
export function closedSaying(node) {
  return node.states === undefined ? "" : joined(...badgesOf(node).filter(({ tone }) => tone !== "plain").map((state) => stateSaying(node, state, "badge")));
}

/** The models of a node, counted. */
export function modelsSaying(node) {
  return joined(...[...modelsOf(node)].map(([model, n]) => (model ? t("gpus_of", { n, model }) : t("whole_of", { n }).replace(/^of /, ""))));
}

/** How old a node's figures of use are; "" while that is as usual. Agents write them every 5 minutes at least. */
export function staleSaying(node) {
  const seconds = useKnown(node) ? secondsSince(node.use.at) : 0;
  return seconds > 360 ? t("stale", { age: age(seconds) }) : "";
}

/** What is to be said below a bar, the worst first, as a list of {tone, text}: of a GPU all, of its parts what is worth a look. */
export function notesOf(node, gpu) {
  if (!gpu.states && !partsOf(gpu).some((part) => part.states)) return []; // most have none
  const found = (gpu.states ?? []).map((state) => ({ ...state, text: stateSaying(node, state, "note") }));
  for (const part of partsOf(gpu)) {
    const pod = podOf(part);
    for (const state of (part.states ?? []).filter(({ tone }) => tone !== "plain")) {
      const text = stateSaying(node, state, "note", { pod });
      found.push({ ...state, text: knows(`note_${state.code}`) ? text : `${pod}: ${text}` });
    }
  }
  return found.sort((a, b) => a.rank - b.rank);
}
