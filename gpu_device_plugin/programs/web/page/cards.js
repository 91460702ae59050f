/** Shows nodes as cards: a bar for each GPU, on it a part for each pod. */

import { amount, memory, percent } from "./amounts.js";
import { gpusOf, gpuUseKnown, partName, partsOf, partUseKnown, podToOpen, stateOf, takesPods } from "./cluster.js";
import { lookOf } from "./colours.js";
import { byHand, classes, html, keyed, setAttributes, setText } from "./dom.js";
import { badgesOf, givenSaying, gpuName, gpuSaying, migId, modelsSaying, notesOf, partSaying, placeOf, enforcementHint, enforcementSaying, staleSaying, stateSaying } from "./sayings.js";
import { t } from "./words.js";

// The enforcements that keep a container within its part; all others only ask it to.
const KEEPING = ["partition", "driver", "dmem", "mps", "custom"];
// The free part of a bar that has room for a word beside the number.
const ROOMY = 0.34;

/**
 * The card of a node.
 *
 * @param matches (part): whether a pod is what the filters ask for
 * @param shallow without its bars
 */
export function cardOf(node, matches, { shallow = false } = {}) {
  const rows = rowsOf(node);
  const badges = badgesOf(node);
  const notes = (node.states ?? []).filter((state) => !badges.includes(state)).map((state) => [state.tone, stateSaying(node, state)]);
  const stale = staleSaying(node);
  if (stale) notes.push(["plain", stale]);
  const row = (gpu) => (gpu.parted ? html`<li class="gpu-head">${t("mig_gpu", { i: gpu.number })}</li>` : rowOf(node, gpu, matches));
  return html`<article role="listitem" ${byHand((card) => writeHead(card, node, badges, rows.length))}>
      <header class="card-head"><h3><button class="node-name" type="button"></button></h3>
        <span class="node-models"></span><span class="badges"></span><span class="node-sum"></span></header>
      ${notes.length > 0 && html`<div class="node-notes">${notes.map(([tone, text]) => html`<p class=${`note note-${tone}`}>${text}</p>`)}</div>`}
      <ol class="gpus">${shallow ? null : keyed(rows, (gpu) => gpu.parted ?? gpu.uuid ?? String(gpu.index), row)}</ol>
    </article>`;
}

/** Writes what a card without its bars shows: of a thousand of them, templates would be larger than that. */
function writeHead(card, node, states, rows) {
  card.className = classes("card", !takesPods(node) && "card-closed");
  card.dataset.node = node.name;
  card.style.setProperty("--gpus", Math.max(1, rows));
  setAttributes(card, { "aria-label": node.name });
  const [title, models, badges, sum] = card.firstElementChild.children;
  setText(title.firstElementChild, node.name);
  setText(models, modelsSaying(node));
  setText(sum, givenSaying(node));
  const shown = states.map((state) => [`badge-${state.tone} badge-${state.code}`, stateSaying(node, state, "badge"), ""]);
  if (node.limits) shown.push([KEEPING.includes(node.limits) ? "badge-kept" : "badge-open", enforcementSaying(node.limits), enforcementHint(node.limits)]);
  // The last, which can have the focus, stays the last.
  while (badges.childElementCount > shown.length) badges.firstElementChild.remove();
  while (badges.childElementCount < shown.length) badges.prepend(document.createElement("span"));
  shown.forEach(([look, text, hint], n) => {
    const badge = badges.children[n];
    badge.className = `badge ${look}`;
    setText(badge, text);
    // A hint is read by the pointer, by the keyboard and aloud.
    setAttributes(badge, { "data-tip": hint, "aria-description": hint, tabindex: hint && "0", role: hint && "note" });
  });
}

/** Whether a card has its bars, or only its head yet. */
export function isFilled(card) {
  return card.lastElementChild.childElementCount > 0;
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

/** What opens where a card or a tile is clicked: `open.node` (name), `open.gpu` (name, index) or `open.pod` (ns, pod). */
export function openAt(target, node, open) {
  if (target.closest(".node-name, .tile")) open.node(node.name);
  const [gpu, part] = [target.closest(".gpu-i"), target.closest(".part")];
  if (gpu) open.gpu(node.name, gpusOf(node)[[...gpu.closest(".gpus").querySelectorAll(".gpu-i")].indexOf(gpu)].index);
  const pod = part && podToOpen(gpusOf(node).flatMap(partsOf).find((each) => partName(each) === part.dataset.pod) ?? {});
  if (pod) open.pod(...pod);
}

function rowOf(node, gpu, matches) {
  const given = gpu.pods ?? [];
  const taken = gpu.usedShares ?? 0;
  const shown = given.reduce((sum, part) => sum + part.shares, 0);
  const pending = Math.max(0, taken - shown);
  const open = Math.max(0, gpu.totalShares - Math.max(taken, shown));
  const notes = notesOf(node, gpu);
  // The bar's name says what is free too; on the bar it is for the eye.
  return html`<li class=${classes("gpu", gpu.mig && "gpu-mig", gpu.reason && "gpu-bad")}>
      <button class="gpu-i" type="button" tabindex="-1" aria-label=${t("gpu_open", { gpu: placeOf(gpu) })} .textContent=${
        gpu.mig ? `${migId(gpu)}\n${gpu.mig.profile}` : String(gpu.index)}></button>
      <div class=${classes("bar", gpu.reason && "bar-bad", gpu.cordon && "bar-cordoned")} role="group" aria-label=${`${gpuName(gpu)}: ${gpuSaying(node, gpu)}`}>
        <div class="parts" role="presentation" .style=${`flex-grow: ${shown}`}>${
          keyed(given, (part) => partName(part) ?? "?", (part) => partOf(node, gpu, part, matches(part)))}</div>
        <span class="part-pending" ?hidden=${!pending} aria-label=${pending > 0 && t("note_pending", { amount: amount(node, pending) })}
          role=${pending > 0 && "img"} .style=${`flex-grow: ${pending}`}></span>
        <span class=${classes("bar-free", !gpu.freeShares && "bar-free-none")} ?hidden=${!open} aria-hidden="true" .style=${`flex-grow: ${open}`}>
          <span class="bar-free-text" .textContent=${freeSaying(node, gpu, open)}></span>
        </span>
      </div>
      <span class="gpu-sum" aria-hidden="true">
        <b .textContent=${gpu.reason ? t("legend_bad") : amount(node, taken)}></b>
        <span .textContent=${gpu.reason ? "" : ` / ${amount(node, gpu.totalShares)}`}></span>
        <span class="gpu-used" .textContent=${gpu.reason ? t("sum_of", { given: amount(node, taken), total: amount(node, gpu.totalShares) }) : gpuUseKnown(node, gpu) && t("bar_used", { used: memory(gpu.usedMiB) })}></span>
      </span>
      <ul class="gpu-notes" ?hidden=${!notes.length}>${notes.map(({ tone, text }) => html`<li class=${`note note-${tone}`}>${text}</li>`)}</ul>
    </li>`;
}

function freeSaying(node, gpu, open) {
  if (gpu.reason) return "";
  if (gpu.cordon) return t("badge_cordoned");
  const free = gpu.freeShares ? amount(node, gpu.freeShares) : "";
  return free && open / gpu.totalShares >= ROOMY ? t("bar_free", { free }) : free;
}

function partOf(node, gpu, part, matching) {
  const mine = part.whole ? gpu.memoryMiB ?? 0 : part.shares * (node.shareMiB ?? 0);
  const known = partUseKnown(node, part) && mine > 0;
  const idle = stateOf(part, "computes-nothing");
  const look = classes(
    "part", lookOf(part.namespace), part.whole && "part-whole", part.states?.map(({ code }) => `part-${code}`).join(" "), !matching && "part-dim",
  );
  const use = known && [memory(part.usedMiB), part.smPercent && percent(part.smPercent / 100)].filter(Boolean).join(" · ");
  const { ends, guarantee, limit, used } = meterOf(mine, known ? part : {});
  const most = Math.min(limit, used);
  return html`<button type="button" tabindex="-1" class=${look} aria-label=${partSaying(node, gpu, part)} aria-disabled=${podToOpen(part) === null && "true"} data-pod=${partName(part) ?? ""}
      .style=${`flex-grow: ${part.shares}`}>
      <span class="part-name" .textContent=${part.name ?? t("hidden")}></span>
      <span class="idle" .textContent=${idle && stateSaying(node, idle, "badge")}></span>
      <span class="part-use" .textContent=${use}></span>
      <span class="processors" ?hidden=${!part.smPercent} .style=${`width: ${Math.min(100, part.smPercent ?? 0)}%`}></span>
      <span class="meter" ?hidden=${!known}>
        <span class="fill" .style=${`width: ${ends(Math.min(guarantee, used))}`}></span>
        <span class="borrowed" ?hidden=${most <= guarantee} .style=${`left: ${ends(guarantee)}; width: ${ends(Math.max(0, most - guarantee))}`}></span>
        <span class="excess" ?hidden=${used <= limit} .style=${`left: ${ends(limit)}`}></span>
        <span class="most" ?hidden=${limit <= guarantee} .style=${`left: ${ends(limit)}`}></span>
      </span>
    </button>`;
}

/** Where a meter has its marks, in MiB, and `ends` (mib): how far from its beginning an amount ends. `given`: the guarantee. */
export function meterOf(given, { limitMiB, usedMiB = 0 }) {
  const limit = limitMiB ?? given;
  const all = Math.max(given, limit, usedMiB);
  return { guarantee: Math.min(given, limit), limit, used: usedMiB, ends: (mib) => `${(all ? (100 * mib) / all : 0).toFixed(1)}%` };
}
