/** Says what a bar, a part or a cell shows: for screen readers, and for the pointer that rests on it. */

import { age, ageOf, amount, memory, percent, secondsSince } from "./amounts.js";
import { gpuUseKnown, isIdle, isWhole, modelsOf, partName, partsOf, partUseKnown, useKnown } from "./cluster.js";
import { t } from "./words.js";

const ENFORCEMENTS = ["partition", "driver", "mps", "custom", "advisory"];

function joined(...parts) {
  return parts.filter(Boolean).join(t("list_comma"));
}

/** The pod of a part in words; also of one that the caller may not see. */
function podOf(part) {
  return partName(part) ?? t("part_hidden");
}

/** A GPU in words. */
export function gpuSaying(node, gpu) {
  const whole = isWhole(gpu);
  return joined(
    t("bar_given", { given: amount(node, gpu.usedShares ?? 0), total: amount(node, gpu.totalShares) }),
    whole && t(gpu.mig ? "bar_whole_mig" : "bar_whole"),
    gpuUseKnown(node, gpu) && t("bar_used", { used: memory(gpu.usedMiB) }),
    t("bar_free", { free: amount(node, gpu.freeShares ?? 0) }),
    gpu.reason && t("bar_bad", { why: gpu.reason }),
    gpu.cordon && cordonSaying(gpu.cordon),
    // A MIG instance is never given as a whole GPU, so that its shares in use keep nobody from that.
    gpu.usedShares > 0 && !whole && !gpu.mig && !gpu.reason && t("bar_fenced_whole"),
    whole && !gpu.resource && t("bar_fenced_shares"),
    ...partsOf(gpu).filter((part) => part.overSince).map((part) => `${podOf(part)}: ${overFor(part)}`),
  );
}

/** Who put a GPU aside, when and why. */
function cordonSaying({ by, at, why }) {
  return t(why ? "bar_cordoned_why" : "bar_cordoned", { by: by || "?", age: ageOf(at), why });
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
    part.trespassing ? t("part_trespass") : part.whole ? t(gpu.mig ? "part_whole_mig" : "part_whole") : t("part_given", { amount: amount(node, part.shares) }),
    partUseKnown(node, part) && t("part_used", { amount: memory(part.usedMiB) }),
    part.smPercent !== undefined && t("part_sm", { percent: percent(part.smPercent / 100) }),
    isIdle(node, part) && idleSaying(part),
    ...elasticSaying(part),
    part.overSince && overFor(part),
    part.enforcement && enforcementSaying(part.enforcement),
    part.held && !part.whole && t(`held_${part.held}`),
    part.deleting && t("part_deleting"),
  );
}

/** What a part may use beyond its guarantee, borrows and is to return, in words; nothing for one without a limit of its own. */
export function elasticSaying(part) {
  if (part.limitMiB === undefined) return [];
  return [
    t("part_limit", { amount: memory(part.limitMiB) }),
    part.borrowedMiB > 0 && t("part_borrows", { amount: memory(part.borrowedMiB) }),
    part.askedAt && t("part_asked", { age: ageOf(part.askedAt) }),
    part.returnBy && t("part_until", { age: age(-secondsSince(part.returnBy)) }),
    part.neededBy && t("part_needed", { pod: part.neededBy }),
  ].filter(Boolean);
}

/** That a part is idle, in words: for how long, once its agent says that. */
export function idleSaying(part) {
  return part.idleSince ? t("part_idle_for", { age: ageOf(part.idleSince) }) : t("part_idle");
}

/** The same, as short as it stands on a bar. */
export function idleBadge(part) {
  return part.idleSince ? t("idle_for", { age: ageOf(part.idleSince) }) : t("idle");
}

function overFor(part) {
  return t("part_over", { age: ageOf(part.overSince) });
}

export function enforcementSaying(enforcement) {
  return ENFORCEMENTS.includes(enforcement) ? t(`enforcement_${enforcement}`) : t("enforcement_other", { enforcement });
}

export function cellSaying(node, gpu) {
  return t("cell", { node: node.name, i: gpu.index, rest: joined(stateSaying(node), gpuSaying(node, gpu)) });
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

/** What the problem is. */
export function problemSaying({ kind, node, gpu, part }) {
  const used = part && partUseKnown(node, part) ? memory(part.usedMiB) : "–";
  if (kind === "node") return node.problem || t("not_ready");
  if (kind === "bad") return t("bar_bad", { why: gpu.reason });
  if (kind === "over") return t("problem_over", { used, given: amount(node, part.shares), age: ageOf(part.overSince) });
  if (kind === "trespass") return part.usedMiB ? t("problem_trespass", { amount: memory(part.usedMiB) }) : t("part_trespass");
  return t(`held_${part.held}`);
}

/** How much of a node is given. */
export function givenSaying(node) {
  const { givenMiB, totalMiB } = node.sums ?? {};
  const [given, total] = totalMiB ? [memory(givenMiB ?? 0), memory(totalMiB)] : [amount(node, node.usedShares ?? 0), amount(node, node.totalShares ?? 0)];
  return t("sum_of", { given, total });
}

/** The state of a node in words; "" if it is as it should be. */
export function stateSaying(node) {
  return joined(!node.ready && t("not_ready"), node.unschedulable && t("cordoned"));
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

/** What is to be said below a bar: a list of {tone, text}. */
export function notesOf(node, gpu) {
  const notes = [];
  if (gpu.reason) notes.push({ tone: "bad", text: t("bar_bad", { why: gpu.reason }) });
  if (gpu.cordon) notes.push({ tone: "warn", text: cordonSaying(gpu.cordon) });
  if (gpu.refusal) notes.push({ tone: "warn", text: t("note_refusal", { why: gpu.refusal }) });
  for (const part of partsOf(gpu)) {
    const pod = podOf(part);
    if (part.overSince && !part.trespassing) {
      const [used, given] = [partUseKnown(node, part) ? memory(part.usedMiB) : "–", amount(node, part.shares)];
      notes.push({ tone: "bad", text: t("note_over", { pod, used, given, age: ageOf(part.overSince) }), part });
    }
    if (part.trespassing) {
      const text = part.usedMiB ? t("note_trespass", { pod, amount: memory(part.usedMiB) }) : t("note_trespass_unknown", { pod });
      notes.push({ tone: "bad", text, part });
    }
    if (part.askedAt) notes.push({ tone: "warn", text: `${pod}: ${elasticSaying(part).slice(1).join(t("list_comma"))}`, part });
    if (part.held === "differs" || part.held === "missing") {
      notes.push({ tone: "warn", text: `${pod}: ${t(`held_${part.held}`)}`, part });
    }
  }
  if (gpu.unattributedMiB) notes.push({ tone: "plain", text: t("note_other", { amount: memory(gpu.unattributedMiB) }) });
  if (gpu.limits && gpu.limits !== node.limits) notes.push({ tone: "plain", text: enforcementSaying(gpu.limits) });
  return notes;
}
