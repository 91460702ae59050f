/** Shows nodes as cards: a bar for each GPU, on it a part for each pod. */

import { amount, memory, percent } from "./amounts.js";
import { gpusOf, gpuUseKnown, isIdle, partName, partUseKnown, podToOpen, takesPods, unheld } from "./cluster.js";
import { lookOf } from "./colours.js";
import { make, reconcile, setAttribute, setClass, setStyle, setText } from "./dom.js";
import { oneStop } from "./keys.js";
import { givenSaying, gpuName, gpuSaying, idleBadge, migId, modelsSaying, notesOf, partSaying, placeOf, podOf, enforcementHint, enforcementSaying, staleSaying } from "./sayings.js";
import { serverSaying } from "./sentences.js";
import { t } from "./words.js";

// The enforcements that keep a container within its part; all others only ask it to.
const KEEPING = ["partition", "driver", "mps", "custom"];
// The free part of a bar that has room for a word beside the number.
const ROOMY = 0.34;
// A name of so many letters is not cut.
const WHOLE_NAME = 5;

const pieces = new WeakMap();

/**
 * Makes the card of a node, empty: `updateCard` fills it.
 *
 * @param on.node (name), on.pod (ns, pod): what was chosen
 */
export function makeCard(on) {
  const title = make("button", { class: "node-name", type: "button" });
  const parts = {
    title,
    models: make("span", { class: "node-models" }),
    badges: make("span", { class: "badges" }),
    sum: make("span", { class: "node-sum" }),
    problem: make("p", { class: "note note-bad" }),
    notes: make("div", { class: "node-notes" }),
    gpus: make("ol", { class: "gpus" }),
    on,
  };
  const card = make(
    "article", { class: "card", role: "listitem" },
    make("header", { class: "card-head" }, make("h3", {}, title), parts.models, parts.badges, parts.sum),
    parts.problem, parts.notes, parts.gpus,
  );
  parts.stop = oneStop(parts.gpus, ".part");
  title.addEventListener("click", () => on.node(card.dataset.node));
  pieces.set(card, parts);
  return card;
}

/** Writes a node on its card. `matches` (part): whether a pod is what the filters ask for. `shallow`: without its bars. */
export function updateCard(card, node, matches, { shallow = false } = {}) {
  const to = pieces.get(card);
  card.dataset.node = node.name;
  setAttribute(card, "aria-label", node.name);
  setClass(card, "card", !takesPods(node) && "card-closed");
  setText(to.title, node.name);
  setText(to.models, modelsSaying(node));
  updateBadges(to.badges, node);
  setText(to.sum, givenSaying(node));
  setText(to.problem, serverSaying(node.problem));
  to.problem.hidden = !node.problem;
  const loose = (node.usedShares ?? 0) - node.gpus.reduce((sum, gpu) => sum + (gpu.usedShares ?? 0), 0);
  const looseMig = (node.instances ?? []).flatMap((offer) => offer.unplaced ?? []).reduce((sum, pod) => sum + pod.instances, 0);
  const notes = [
    node.use?.blind && (typeof node.use.blind === "string" ? serverSaying(node.use.blind) : t("blind")),
    loose > 0 && t("loose", { amount: amount(node, loose) }),
    looseMig > 0 && t("loose_mig", { n: looseMig }),
    staleSaying(node),
  ].filter(Boolean);
  reconcile(to.notes, notes, (note) => note, () => make("p", { class: "note note-plain" }), setText);
  const rows = rowsOf(node);
  setStyle(card, "--gpus", String(Math.max(1, rows.length)));
  if (shallow) return;
  reconcile(to.gpus, rows, (gpu) => gpu.parted ?? gpu.uuid ?? String(gpu.index), (gpu) => (gpu.parted ? makeHead() : makeGpu(card, to.on)),
    (row, gpu) => (gpu.parted ? setText(row, t("mig_gpu", { i: gpu.number })) : updateGpu(row, node, gpu, matches)));
  to.stop();
}

/** Whether a card has its bars, or only its head yet. */
export function isFilled(card) {
  return pieces.get(card).gpus.childElementCount > 0;
}

/** The rows of a node: its GPUs, and before the MIG instances of one a head for it. */
function rowsOf(node) {
  const rows = [];
  let parted = null;
  for (const gpu of gpusOf(node)) {
    const of = gpu.mig?.parent ?? null;
    if (of !== null && of !== parted) rows.push({ parted: of, number: gpu.mig.gpu });
    parted = of;
    rows.push(gpu);
  }
  return rows;
}

function makeHead() {
  return make("li", { class: "gpu-head" });
}

function updateBadges(element, node) {
  const badges = [
    !node.ready && ["badge-bad", t("not_ready")],
    node.unschedulable && ["badge-warn", t("cordoned")],
    node.claims && ["badge-claims", t("serves_claims")],
    node.limits && [KEEPING.includes(node.limits) ? "badge-kept" : "badge-open", enforcementSaying(node.limits), enforcementHint(node.limits)],
  ].filter(Boolean);
  reconcile(element, badges, ([look]) => look, () => make("span"), (badge, [look, text, hint]) => {
    setClass(badge, "badge", look);
    setText(badge, text);
    // A hint is read by the pointer, by the keyboard and aloud.
    for (const [name, value] of [["data-tip", hint], ["aria-description", hint], ["tabindex", hint && "0"], ["role", hint && "note"]]) {
      setAttribute(badge, name, value || null);
    }
  });
}

function makeGpu(card, on) {
  const parts = {
    index: make("button", { class: "gpu-i", type: "button", tabindex: "-1" }),
    bar: make("div", { class: "bar", role: "group" }),
    parts: make("div", { class: "parts", role: "presentation" }),
    loose: make("span", { class: "part-pending" }),
    free: make("span", { class: "bar-free" }),
    freeText: make("span", { class: "bar-free-text" }),
    sum: make("span", { class: "gpu-sum", "aria-hidden": "true" }),
    given: make("b"),
    total: make("span"),
    used: make("span", { class: "gpu-used" }),
    notes: make("ul", { class: "gpu-notes" }),
    position: 0,
    on,
  };
  parts.free.append(parts.freeText);
  parts.bar.append(parts.parts, parts.loose, parts.free);
  parts.sum.append(parts.given, parts.total, parts.used);
  parts.index.addEventListener("click", () => on.gpu(card.dataset.node, parts.position));
  const row = make("li", { class: "gpu" }, parts.index, parts.bar, parts.sum, parts.notes);
  pieces.set(row, parts);
  return row;
}

function updateGpu(row, node, gpu, matches) {
  const to = pieces.get(row);
  const given = gpu.pods ?? [];
  const taken = gpu.usedShares ?? 0;
  const shown = given.reduce((sum, part) => sum + part.shares, 0);
  const open = Math.max(0, gpu.totalShares - Math.max(taken, shown));
  setClass(row, "gpu", gpu.mig && "gpu-mig");
  to.position = gpu.index;
  setAttribute(to.index, "aria-label", t("gpu_open", { gpu: placeOf(gpu) }));
  setText(to.index, gpu.mig ? `${migId(gpu)}\n${gpu.mig.profile}` : gpu.index);
  setAttribute(to.bar, "aria-label", `${gpuName(gpu)}: ${gpuSaying(node, gpu)}`);
  setClass(to.bar, "bar", gpu.reason && "bar-bad", gpu.cordon && "bar-cordoned");
  reconcile(to.parts, given, (part) => partName(part) ?? "?", () => makePart(to.on),
    (element, part) => updatePart(element, node, gpu, part, matches(part)));
  setStyle(to.parts, "flex-grow", String(shown));
  const pending = Math.max(0, taken - shown);
  to.loose.hidden = !pending;
  setStyle(to.loose, "flex-grow", String(pending));
  setAttribute(to.loose, "aria-label", pending ? t("note_pending", { amount: amount(node, pending) }) : null);
  setAttribute(to.loose, "role", pending ? "img" : null);
  to.free.hidden = !open;
  setStyle(to.free, "flex-grow", String(open));
  // The bar's name says it too; here it is for the eye.
  setClass(to.free, "bar-free", !gpu.freeShares && "bar-free-none");
  setText(to.freeText, gpu.reason ? t("legend_bad") : gpu.cordon ? t("cordoned") : !gpu.freeShares ? "" : open / gpu.totalShares < ROOMY ? amount(node, gpu.freeShares) : t("bar_free", { free: amount(node, gpu.freeShares) }));
  setAttribute(to.free, "aria-hidden", "true");
  setText(to.given, amount(node, taken));
  setText(to.total, ` / ${amount(node, gpu.totalShares)}`);
  setText(to.used, gpuUseKnown(node, gpu) ? t("bar_used", { used: memory(gpu.usedMiB) }) : "");
  const notes = notesOf(node, gpu);
  to.notes.hidden = !notes.length;
  reconcile(to.notes, notes, (note) => `${note.tone} ${note.part ? podOf(note.part) : note.text}`, makeNote, updateNote);
}

function makeNote() {
  return make("li");
}

function updateNote(element, note) {
  setClass(element, "note", `note-${note.tone}`);
  setText(element, note.text);
}

function makePart(on) {
  const parts = {
    // A name that is too long is cut in its middle: both its ends tell what it is.
    begin: make("span", { class: "part-begin" }),
    end: make("bdi", { dir: "ltr" }),
    idle: make("span", { class: "idle" }),
    use: make("span", { class: "part-use" }),
    sm: make("span", { class: "processors" }),
    meter: make("span", { class: "meter" }),
    fill: make("span", { class: "fill" }),
    // What is used beyond the guarantee, up to the limit.
    borrowed: make("span", { class: "borrowed" }),
    // What is used beyond the limit.
    excess: make("span", { class: "excess" }),
    most: make("span", { class: "most" }),
    pod: null,
  };
  parts.meter.append(parts.fill, parts.borrowed, parts.excess, parts.most);
  const name = make("span", { class: "part-name" }, parts.begin, make("span", { class: "part-end" }, parts.end));
  const element = make("button", { type: "button", tabindex: "-1" }, name, parts.idle, parts.use, parts.sm, parts.meter);
  element.addEventListener("click", () => parts.pod && on.pod(...parts.pod));
  pieces.set(element, parts);
  return element;
}

function updatePart(element, node, gpu, part, matching) {
  const to = pieces.get(element);
  const mine = part.whole ? gpu.memoryMiB ?? 0 : part.shares * (node.shareMiB ?? 0);
  const known = partUseKnown(node, part) && mine > 0;
  to.pod = podToOpen(part);
  setClass(
    element, "part", lookOf(part.namespace), part.overSince && "part-over", part.askedAt && "part-asked", part.whole && "part-whole", unheld(part) && "part-unheld",
    part.deleting && "part-ending", !matching && "part-dim",
  );
  setAttribute(element, "aria-label", partSaying(node, gpu, part));
  setAttribute(element, "aria-disabled", to.pod === null && "true");
  element.dataset.pod = partName(part) ?? "";
  setStyle(element, "flex-grow", String(part.shares));
  const name = part.name ?? t("hidden");
  const half = name.length > WHOLE_NAME ? Math.ceil(name.length / 2) : name.length;
  setText(to.begin, name.slice(0, half));
  setText(to.end, name.slice(half));
  setText(to.idle, isIdle(node, part) ? idleBadge(part) : "");
  setText(to.use, known ? [memory(part.usedMiB), part.smPercent && percent(part.smPercent / 100)].filter(Boolean).join(" · ") : "");
  to.sm.hidden = !part.smPercent;
  setStyle(to.sm, "width", `${Math.min(100, part.smPercent ?? 0)}%`);
  to.meter.hidden = !known;
  if (!known) return;
  const { ends, guarantee, limit, used } = meterOf(mine, part);
  setStyle(to.fill, "width", ends(Math.min(guarantee, used)));
  to.borrowed.hidden = Math.min(limit, used) <= guarantee;
  setStyle(to.borrowed, "left", ends(guarantee));
  setStyle(to.borrowed, "width", ends(Math.min(limit, used) - guarantee));
  to.excess.hidden = used <= limit;
  setStyle(to.excess, "left", ends(limit));
  to.most.hidden = limit <= guarantee;
  setStyle(to.most, "left", ends(limit));
}

/** Where a meter has its marks, in MiB, and `ends` (mib): how far from its beginning an amount ends. `given`: the guarantee. */
export function meterOf(given, { limitMiB, usedMiB = 0 }) {
  const limit = limitMiB ?? given;
  const all = Math.max(given, limit, usedMiB);
  return { guarantee: Math.min(given, limit), limit, used: usedMiB, ends: (mib) => `${(all ? (100 * mib) / all : 0).toFixed(1)}%` };
}
