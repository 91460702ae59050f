/** Shows the sums of the cluster, and what asks for attention in it. */

import { age, memory, percent, secondsSince } from "./amounts.js";
import { gpusOf, gpuUseKnown, namespacesOf, problemsOf, sumsOfParts } from "./cluster.js";
import { lookOf } from "./colours.js";
import { classes, html, keyed, show } from "./dom.js";
import { matcherOf } from "./filters.js";
import { placeOf } from "./sayings.js";
import { t } from "./words.js";

const MOST_NAMESPACES = 14;

/** Sorts problems, the worst first. */
export function worstFirst(problems) {
  return [...problems].sort((a, b) => a.state.rank - b.state.rank);
}

const ADDED = ["gpus", "freeGpus", "instances", "freeInstances", "totalMiB", "freeMiB"];

/**
 * Adds up the sums of the nodes that the filters let through; what is given and used is that of the pods that they ask for.
 * What is used is known of `measuredGpus` of `usedGpus` GPUs.
 */
export function total(nodes, filters) {
  const all = {
    nodes: nodes.length, gpus: 0, freeGpus: 0, instances: 0, freeInstances: 0, totalMiB: 0, givenMiB: 0, usedMiB: 0, freeMiB: 0,
    largestMiB: 0, largestAt: null, measuredGpus: 0, usedGpus: 0, problems: [], namespaces: new Map(),
  };
  for (const node of nodes) {
    const sums = node.sums ?? {};
    const { every, part, problem } = matcherOf(filters, node);
    for (const key of ADDED) all[key] += sums[key] ?? 0;
    const of = every ? { ...sums, gpus: gpusOf(node).length } : sumsOfParts(node, part);
    for (const key of ["givenMiB", "usedMiB", "measuredGpus"]) all[key] += of[key] ?? 0;
    all.usedGpus += of.gpus;
    all.problems.push(...problemsOf(node).filter(problem));
    if (sums.largestMiB > all.largestMiB) [all.largestMiB, all.largestAt] = [sums.largestMiB, { node, gpu: gpusOf(node).find(({ index }) => index === sums.largestIndex) ?? { index: sums.largestIndex } }];
    for (const [name, mib] of namespacesOf(node)) all.namespaces.set(name, (all.namespaces.get(name) ?? 0) + mib);
  }
  return all;
}

/**
 * Writes the sums into the tiles of index.html. `waiting`: the pending pods, null where the filters ask for nodes, undefined before they are known. `chosen` (kind): a
 * person wants to see the problems of this kind.
 */
export function showSums(root, all, waiting, chosen) {
  const write = (name, value, detail, { tone = "", mib = 0 } = {}) => {
    const tile = root.querySelector(`[data-sum=${name}]`);
    show(tile.querySelector(".sum-value"), value);
    show(tile.querySelector(".sum-detail"), detail);
    tile.className = classes("sum", tone && `sum-${tone}`);
    tile.querySelector(".gauge-fill")?.style.setProperty("width", `${all.totalMiB ? (100 * mib) / all.totalMiB : 0}%`);
  };
  const counted = all.nodes > 0; // of nodes that are not there, or may not be read, nothing is known
  write("given", counted ? memory(all.givenMiB) : "–", counted ? t("of_total", { total: memory(all.totalMiB) }) : "", { mib: all.givenMiB });
  // Of a part of the GPUs it would be no part of what is given on all of them.
  const ofGiven = all.givenMiB ? t("of_given", { percent: percent(all.usedMiB / all.givenMiB) }) : "";
  const ofKnown = all.measuredGpus < all.usedGpus ? t("used_of", { known: all.measuredGpus, n: all.usedGpus }) : ofGiven;
  write("used", all.measuredGpus || (counted && !all.usedGpus) ? memory(all.usedMiB) : "–", all.measuredGpus || !all.usedGpus ? ofKnown : t("only_allocation"), { mib: Math.min(all.usedMiB, all.totalMiB) });
  write("free", counted ? memory(all.freeMiB) : "–", counted ? t("free_hint") : "", { mib: all.freeMiB });
  const at = all.largestAt;
  // What pods use beyond their limits, or without any, is missing to whoever gets this room.
  const unused = at && gpuUseKnown(at.node, at.gpu) && at.gpu.memoryMiB ? Math.max(0, at.gpu.memoryMiB - at.gpu.usedMiB) : null;
  const where = at && [t("largest_at", { node: at.node.name, gpu: placeOf(at.gpu) }), unused !== null && t("largest_physical", { memory: memory(unused) })];
  write("largest", at ? memory(all.largestMiB) : "–", at ? where.filter(Boolean).join(t("list_comma")) : counted ? t("largest_none") : "", { tone: unused !== null && unused < all.largestMiB && "warn" });
  const instances = all.instances ? t("mig_free", { free: all.freeInstances, n: all.instances }) : "";
  write("whole", counted ? String(all.freeGpus) : "–", counted ? [t("whole_of", { n: all.gpus }), instances].filter(Boolean).join(t("list_comma")) : "");
  const oldest = Math.max(0, ...(waiting ?? []).map((wait) => secondsSince(wait.since)).filter((seconds) => !Number.isNaN(seconds)));
  const waits = waiting === undefined ? "" : waiting === null ? t("waiting_unplaced") : waiting.length ? t("waiting_oldest", { age: age(oldest) }) : t("waiting_none");
  write("waiting", waiting ? String(waiting.length) : "–", waits, { tone: waiting?.length && "warn" });
  const counts = [...Map.groupBy(worstFirst(all.problems), ({ kind }) => kind)].map(([kind, those]) => [kind, those.length]);
  write("attention", counted ? String(all.problems.length) : "–", counted && !counts.length ? t("attention_none") : "", { tone: counts.length && "bad" });
  show(root.querySelector(".sum-links"), keyed(counts, ([kind]) => kind,
    ([kind, n]) => html`<li><button class="link" type="button" @click=${() => chosen(kind)}>${t(`count_${kind}`, { n })}</button></li>`));
}

/** Shows the namespaces with the most memory, as the key to the colours. `chosen` (ns): one was clicked. */
export function showNamespaces(element, all, current, chosen) {
  const named = [...all.namespaces].filter(([name]) => name).sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1));
  const more = named.length - MOST_NAMESPACES;
  show(element, [
    keyed(named.slice(0, MOST_NAMESPACES), ([name]) => name, ([name, mib]) => html`<li>
        <button class="key" type="button" aria-pressed=${String(current === name)} @click=${() => chosen(name)}>
          <span class=${`swatch ${lookOf(name)}`} aria-hidden="true"></span>
          <span class="key-name">${name}</span>
          <span class="key-sum">${memory(mib)}</span>
        </button>
      </li>`),
    more > 0 && html`<li class="key-more">${t("more", { n: more })}</li>`,
  ]);
}
