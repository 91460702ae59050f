/** Shows nodes as cards: a bar for each GPU, on it a part for each pod. */

import { amount, memory, percent } from "./amounts.js";
import { gpusOf, gpuUseKnown, partName, partUseKnown, podToOpen, stateOf, takesPods } from "./cluster.js";
import { lookOf } from "./colours.js";
import { classes, html, keyed, styled } from "./dom.js";
import { badgesOf, givenSaying, gpuName, gpuSaying, migId, modelsSaying, notesOf, partSaying, placeOf, enforcementHint, enforcementSaying, staleSaying, stateSaying } from "./sayings.js";
import { t } from "./words.js";

// The enforcements that keep a container within its part; all others only ask it to.
const KEEPING = ["partition", "driver", "mps", "custom"];
// The free part of a bar that has room for a word beside the number.
const ROOMY = 0.34;
// A name of so many letters is not cut.
const WHOLE_NAME = 5;

/**
 * The card of a node.
 *
 * @param on.node (name), on.gpu (name, index), on.pod (ns, pod): what was chosen
 * @param matches (part): whether a pod is what the filters ask for
 * @param shallow without its bars
 */
export function cardOf(node, on, matches, { shallow = false } = {}) {
  const rows = rowsOf(node);
  const badges = badgesOf(node);
  const notes = (node.states ?? []).filter((state) => !badges.includes(state)).map((state) => [state.tone, stateSaying(node, state)]);
  const stale = staleSaying(node);
  if (stale) notes.push(["plain", stale]);
  const row = (gpu) => (gpu.parted ? html`<li class="gpu-head">${t("mig_gpu", { i: gpu.number })}</li>` : rowOf(node, gpu, on, matches));
  return html`<article class=${classes("card", !takesPods(node) && "card-closed")} role="listitem" data-node=${node.name} aria-label=${node.name}
      ${styled({ "--gpus": String(Math.max(1, rows.length)) })}>
      <header class="card-head">
        <h3><button class="node-name" type="button" @click=${() => on.node(node.name)}>${node.name}</button></h3>
        <span class="node-models">${modelsSaying(node)}</span>
        <span class="badges">${badges.map((state) => badge(`badge-${state.tone} badge-${state.code}`, stateSaying(node, state, "badge")))}${
          node.limits && badge(KEEPING.includes(node.limits) ? "badge-kept" : "badge-open", enforcementSaying(node.limits), enforcementHint(node.limits))}</span>
        <span class="node-sum">${givenSaying(node)}</span>
      </header>
      ${notes.length > 0 && html`<div class="node-notes">${notes.map(([tone, text]) => html`<p class=${`note note-${tone}`}>${text}</p>`)}</div>`}
      <ol class="gpus">${shallow ? null : keyed(rows, (gpu) => gpu.parted ?? gpu.uuid ?? String(gpu.index), row)}</ol>
    </article>`;
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

/** A badge. Its hint, if it has one, is read by the pointer, by the keyboard and aloud. */
function badge(look, text, hint = "") {
  if (!hint) return html`<span class=${`badge ${look}`}>${text}</span>`;
  return html`<span class=${`badge ${look}`} data-tip=${hint} aria-description=${hint} tabindex="0" role="note">${text}</span>`;
}

function rowOf(node, gpu, on, matches) {
  const given = gpu.pods ?? [];
  const taken = gpu.usedShares ?? 0;
  const shown = given.reduce((sum, part) => sum + part.shares, 0);
  const pending = Math.max(0, taken - shown);
  const open = Math.max(0, gpu.totalShares - Math.max(taken, shown));
  const notes = notesOf(node, gpu);
  // The bar's name says what is free too; on the bar it is for the eye.
  return html`<li class=${classes("gpu", gpu.mig && "gpu-mig")}>
      <button class="gpu-i" type="button" tabindex="-1" aria-label=${t("gpu_open", { gpu: placeOf(gpu) })} @click=${() => on.gpu(node.name, gpu.index)}>${
        gpu.mig ? `${migId(gpu)}\n${gpu.mig.profile}` : gpu.index}</button>
      <div class=${classes("bar", gpu.reason && "bar-bad", gpu.cordon && "bar-cordoned")} role="group" aria-label=${`${gpuName(gpu)}: ${gpuSaying(node, gpu)}`}>
        <div class="parts" role="presentation" ${styled({ "flex-grow": String(shown) })}>${
          keyed(given, (part) => partName(part) ?? "?", (part) => partOf(node, gpu, part, on, matches(part)))}</div>
        <span class="part-pending" ?hidden=${!pending} aria-label=${pending > 0 && t("note_pending", { amount: amount(node, pending) })}
          role=${pending > 0 && "img"} ${styled({ "flex-grow": String(pending) })}></span>
        <span class=${classes("bar-free", !gpu.freeShares && "bar-free-none")} ?hidden=${!open} aria-hidden="true" ${styled({ "flex-grow": String(open) })}>
          <span class="bar-free-text">${freeSaying(node, gpu, open)}</span>
        </span>
      </div>
      <span class="gpu-sum" aria-hidden="true">
        <b>${amount(node, taken)}</b>
        <span>${` / ${amount(node, gpu.totalShares)}`}</span>
        <span class="gpu-used">${gpuUseKnown(node, gpu) && t("bar_used", { used: memory(gpu.usedMiB) })}</span>
      </span>
      <ul class="gpu-notes" ?hidden=${!notes.length}>${notes.map(({ tone, text }) => html`<li class=${`note note-${tone}`}>${text}</li>`)}</ul>
    </li>`;
}

function freeSaying(node, gpu, open) {
  if (gpu.reason) return t("legend_bad");
  if (gpu.cordon) return t("badge_cordoned");
  const free = gpu.freeShares ? amount(node, gpu.freeShares) : "";
  return free && open / gpu.totalShares >= ROOMY ? t("bar_free", { free }) : free;
}

function partOf(node, gpu, part, on, matching) {
  const mine = part.whole ? gpu.memoryMiB ?? 0 : part.shares * (node.shareMiB ?? 0);
  const known = partUseKnown(node, part) && mine > 0;
  const [pod, idle] = [podToOpen(part), stateOf(part, "computes-nothing")];
  const look = classes(
    "part", lookOf(part.namespace), part.whole && "part-whole", part.states?.map(({ code }) => `part-${code}`).join(" "), !matching && "part-dim",
  );
  // A name that is too long is cut in its middle: both its ends tell what it is.
  const name = part.name ?? t("hidden");
  const half = name.length > WHOLE_NAME ? Math.ceil(name.length / 2) : name.length;
  const use = known && [memory(part.usedMiB), part.smPercent && percent(part.smPercent / 100)].filter(Boolean).join(" · ");
  const { ends, guarantee, limit, used } = meterOf(mine, known ? part : {});
  const most = Math.min(limit, used);
  return html`<button type="button" tabindex="-1" class=${look} aria-label=${partSaying(node, gpu, part)} aria-disabled=${pod === null && "true"} data-pod=${partName(part) ?? ""}
      ${styled({ "flex-grow": String(part.shares) })} @click=${() => pod && on.pod(...pod)}>
      <span class="part-name">
        <span class="part-begin">${name.slice(0, half)}</span>
        <span class="part-end"><bdi dir="ltr">${name.slice(half)}</bdi></span>
      </span>
      <span class="idle">${idle && stateSaying(node, idle, "badge")}</span>
      <span class="part-use">${use}</span>
      <span class="processors" ?hidden=${!part.smPercent} ${styled({ width: `${Math.min(100, part.smPercent ?? 0)}%` })}></span>
      <span class="meter" ?hidden=${!known}>
        <span class="fill" ${styled({ width: ends(Math.min(guarantee, used)) })}></span>
        <span class="borrowed" ?hidden=${most <= guarantee} ${styled({ left: ends(guarantee), width: ends(Math.max(0, most - guarantee)) })}></span>
        <span class="excess" ?hidden=${used <= limit} ${styled({ left: ends(limit) })}></span>
        <span class="most" ?hidden=${limit <= guarantee} ${styled({ left: ends(limit) })}></span>
      </span>
    </button>`;
}

/** Where a meter has its marks, in MiB, and `ends` (mib): how far from its beginning an amount ends. `given`: the guarantee. */
export function meterOf(given, { limitMiB, usedMiB = 0 }) {
  const limit = limitMiB ?? given;
  const all = Math.max(given, limit, usedMiB);
  return { guarantee: Math.min(given, limit), limit, used: usedMiB, ends: (mib) => `${(all ? (100 * mib) / all : 0).toFixed(1)}%` };
}
