/** Shows which moves of pods would make room for a waiting pod, once a person asks. */

import { amount } from "./amounts.js";
import { make, setText } from "./dom.js";
import { serverSaying } from "./sentences.js";
import { t } from "./words.js";

const MOST_NAMED = 10;

/**
 * Makes a button and the place for its answer. `plans.read` () returns the answer of api/v1/plans, `plans.node` (name)
 * what is known of a node.
 */
export function planSection(plans) {
  const said = make("p", { role: "status" });
  const rest = make("div", { class: "plan-rest" });
  const button = make("button", { class: "link", type: "button", text: t("plan_ask") });
  let asking = false;
  button.addEventListener("click", async () => {
    if (asking) return;
    asking = true;
    setText(said, t("plan_reading"));
    rest.replaceChildren();
    try {
      const answer = await plans.read();
      setText(said, serverSaying(answer.verdict));
      rest.replaceChildren(...planDetails(answer, plans.node));
    } catch (error) {
      setText(said, serverSaying(error.message) || t("unreachable"));
    }
    asking = false;
  });
  return make("section", { class: "plan" }, button, said, rest);
}

function planDetails({ plans, gpus, stays, notes }, node) {
  const moves = plans.flatMap((plan) => plan.moves);
  return [
    ...notes.map((note) => make("p", { class: "note note-warn", text: serverSaying(note) })),
    moves.length > 0 && make("ol", { class: "plan-moves" }, ...moves.map(({ pod, from, to }) => make("li", {
      text: t("plan_move", { pod, from: place(from.node, from.gpus), to: place(to.node, Object.keys(to.gpus)) }),
    }))),
    gpus.length > 0 && changes(gpus, node),
    stays.length > 0 && make("div", {}, make("h4", { text: t("plan_stays") }), make("ul", { class: "plain-list" }, ...staying(stays))),
  ].filter(Boolean);
}

function place(node, gpus) {
  return t("gpu_at", { node, gpu: t("gpu_name", { i: gpus.join(t("list_comma")) }) });
}

function changes(gpus, node) {
  const head = ["gpus", "plan_before", "plan_after"].map((key) => make("th", { scope: "col", text: t(key) }));
  return make("table", { class: "plan-gpus" },
    make("caption", { text: t("plan_changes") }),
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...gpus.map((gpu) => make("tr", {},
      make("th", { scope: "row", text: place(gpu.node, [gpu.gpu]) }),
      held(gpu.before, gpu.freeBefore, node(gpu.node)),
      held(gpu.after, gpu.freeAfter, node(gpu.node))))));
}

function held(pods, free, node) {
  const lines = Object.entries(pods).map(([pod, shares]) => {
    const name = pod.replace(/ \(new\)$/, "");
    const saying = t("plan_pod", { pod: name, amount: shares ? amount(node, shares) : t("part_whole") });
    return name === pod ? make("li", { text: saying }) : make("li", {}, make("b", { text: saying }));
  });
  return make("td", {}, make("ul", {}, ...lines, make("li", { class: "quiet", text: free ? t("bar_free", { free: amount(node, free) }) : t("plan_full") })));
}

function staying(stays) {
  const byReason = new Map();
  for (const { pod, why } of stays) byReason.set(why, [...(byReason.get(why) ?? []), pod]);
  return [...byReason].map(([why, pods]) => {
    const named = pods.sort().slice(0, MOST_NAMED);
    const more = pods.length > MOST_NAMED ? [t("more", { n: pods.length - MOST_NAMED })] : [];
    return make("li", { text: t("plan_stay", { why: serverSaying(why), pods: [...named, ...more].join(t("list_comma")) }) });
  });
}
