/** Shows which moves of pods would make room for a waiting pod, once a person asks. */

import { amount } from "./amounts.js";
import { html, made, show } from "./dom.js";
import { say, t } from "./words.js";

const MOST_NAMED = 10;

/**
 * Makes a button and the place for its answer. `plans.read` () returns the answer of api/v1/plans, `plans.node` (name)
 * what is known of a node.
 */
export function planSection(plans) {
  let asking = false;
  const section = made(html`<section class="plan"><button class="link" type="button" @click=${click}>${t("plan_ask")}</button><p role="status"></p><div class="plan-rest"></div></section>`);
  const [, said, rest] = section.children;
  return section;

  async function click() {
    if (asking) return;
    asking = true;
    show(said, t("plan_reading"));
    show(rest, null);
    try {
      const answer = await plans.read();
      show(said, say(answer.verdict));
      show(rest, planDetails(answer, plans.node));
    } catch (error) {
      show(said, error.message || t("unreachable"));
    }
    asking = false;
  }
}

function planDetails({ plans, gpus, stays, notes }, node) {
  const moves = plans.flatMap((plan) => plan.moves);
  const told = ({ pod, from, to }) => t("plan_move", { pod, from: place(from.node, from.gpus), to: place(to.node, Object.keys(to.gpus)) });
  return [
    notes.map((note) => html`<p class="note note-warn">${say(note)}</p>`),
    moves.length > 0 && html`<ol class="plan-moves">${moves.map((move) => html`<li>${told(move)}</li>`)}</ol>`,
    gpus.length > 0 && changes(gpus, node),
    stays.length > 0 && html`<div><h4>${t("plan_stays")}</h4><ul class="plain-list">${staying(stays)}</ul></div>`,
  ];
}

function place(node, gpus) {
  return t("gpu_at", { node, gpu: t("gpu_name", { i: gpus.join(t("list_comma")) }) });
}

function changes(gpus, node) {
  return html`<table class="plan-gpus">
    <caption>${t("plan_changes")}</caption>
    <thead><tr>${["gpus", "plan_before", "plan_after"].map((key) => html`<th scope="col">${t(key)}</th>`)}</tr></thead>
    <tbody>${gpus.map((gpu) => html`<tr><th scope="row">${place(gpu.node, [gpu.gpu])}</th>${held(gpu.before, gpu.freeBefore, node(gpu.node))}${held(gpu.after, gpu.freeAfter, node(gpu.node))}</tr>`)}</tbody>
  </table>`;
}

function held(pods, free, node) {
  const lines = Object.entries(pods).map(([pod, shares]) => {
    const name = pod.replace(/ \(new\)$/, "");
    const saying = t("plan_pod", { pod: name, amount: shares ? amount(node, shares) : t("part_whole") });
    return html`<li>${name === pod ? saying : html`<b>${saying}</b>`}</li>`;
  });
  return html`<td><ul>${lines}<li class="quiet">${free ? t("bar_free", { free: amount(node, free) }) : t("plan_full")}</li></ul></td>`;
}

function staying(stays) {
  const byReason = new Map();
  for (const { pod, why } of stays) byReason.set(say(why), [...(byReason.get(say(why)) ?? []), pod]);
  return [...byReason].map(([why, pods]) => {
    const named = pods.sort().slice(0, MOST_NAMED);
    const more = pods.length > MOST_NAMED ? [t("more", { n: pods.length - MOST_NAMED })] : [];
    return html`<li>${t("plan_stay", { why, pods: [...named, ...more].join(t("list_comma")) })}</li>`;
  });
}
