/** Makes what the drawer shows of a pod and of a node. */

import { ageOf, memory, percent } from "./amounts.js";
import { makeCard, meterOf, updateCard } from "./cards.js";
import { gpusOf, partName, partsOf, podToOpen } from "./cluster.js";
import { lookOf } from "./colours.js";
import { make } from "./dom.js";
import { gpuPast, incidentList, namespacePast, podPast, remembered } from "./past.js";
import { planSection } from "./plans.js";
import { elasticSaying, givenSaying, gpuSaying, idleSaying, migId, modelsSaying, partSaying, placeOf, enforcementSaying } from "./sayings.js";
import { serverSaying } from "./sentences.js";
import { t } from "./words.js";

/** A pod, as api/v1/pods tells it. `plans`: see `planSection`; `past` reads what agents remember. */
export function podDetails(pod, open, plans, past) {
  const why = pod.why ?? [];
  return [
    facts([
      ["namespace", pod.namespace],
      ["on_node", pod.node && link(pod.node, () => open.node(pod.node))],
      ["phase", [pod.phase, pod.deleting && t("deleting")].filter(Boolean).join(" · ")],
      ["created", pod.created && t("ago", { age: ageOf(pod.created) })],
      ["priority", pod.priority],
      ["scheduler", pod.scheduler],
      ["uid", pod.uid],
    ]),
    why.length > 0 && section("why", make("pre", { class: "lines", text: why.map(serverSaying).join("\n") })),
    !pod.node && !pod.deleting && (pod.containers ?? []).some((each) => Object.keys(each.asks ?? {}).length) && planSection(plans),
    pod.node && remembered(() => past.pod(pod.node, pod.namespace, pod.name), podPast),
    section("containers", ...(pod.containers ?? []).map(container)),
    section("events", events(pod.events ?? [])),
  ];
}

function container(each) {
  const asks = Object.entries(each.asks ?? {}).map(([name, n]) => `${name.split("/").at(-1)}: ${n}`);
  const variables = Object.entries(each.variables ?? {});
  return make(
    "article", { class: "box" },
    make("h4", {},
      make("span", { class: "box-name", text: each.name }),
      each.kind && each.kind !== "app" && make("span", { class: "badge", text: each.kind === "init" ? t("kind_init") : t("kind_sidecar") }),
      asks.length > 0 && make("span", { class: "quiet", text: `${t("asks")} ${asks.join(", ")}` })),
    (each.gpus ?? []).length > 0 && make("ul", { class: "plain-list" }, ...each.gpus.map((gpu) => make(
      "li", {},
      make("b", { text: t("gpu_name", { i: gpu.index ?? "?" }) }),
      ` ${gpu.whole ? t(gpu.mig ? "part_whole_mig" : "part_whole") : memory(gpu.grantedMiB ?? 0)} `,
      make("span", { class: "quiet", text: [gpu.mig && `MIG ${migId(gpu)} ${gpu.mig.profile}`, gpu.model, gpu.uuid].filter(Boolean).join(" · ") }),
    ))),
    ...(each.use ?? []).map(use),
    (each.gpus ?? []).length > 0 && !(each.use ?? []).length && make("p", { class: "quiet", text: t("use_unknown") }),
    variables.length > 0 && make("details", { open: "" }, make("summary", { text: t("variables") }), make("dl", { class: "variables" },
      ...variables.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]))),
  );
}

function use(each) {
  const given = each.grantedMiB ?? 0;
  const used = each.usedMiB === undefined ? null : memory(each.usedMiB);
  const over = each.overSince || each.trespassing;
  const words = [
    given ? t("use_of", { used: used ?? "–", given: memory(given) }) : t("part_used", { amount: used ?? "–" }),
    used === null && t("used_unknown"),
    each.smPercent !== undefined && t("part_sm", { percent: percent(each.smPercent / 100) }),
    each.enforcement && enforcementSaying(each.enforcement),
    each.held && t(`held_${each.held}`),
    each.foundMiB && t("found_limit", { amount: memory(each.foundMiB) }),
    ...elasticSaying(each),
    each.idleSince && idleSaying(each),
    each.overSince && t("part_over", { age: ageOf(each.overSince) }),
    each.trespassing && t("part_trespass"),
    each.why,
  ].filter(Boolean).join(" · ");
  // Beyond the guarantee the bar goes on hatched, beyond the limit in red.
  const meter = meterOf(given, each);
  const fill = make("span", { class: "gauge-fill" });
  const borrowed = make("span", { class: "borrowed" });
  const excess = make("span", { class: "excess" });
  fill.style.width = meter.ends(Math.min(meter.guarantee, meter.used));
  borrowed.style.left = meter.ends(meter.guarantee);
  borrowed.style.width = meter.ends(Math.max(0, Math.min(meter.limit, meter.used) - meter.guarantee));
  excess.style.left = meter.ends(meter.limit);
  excess.hidden = meter.used <= meter.limit;
  return make("div", { class: `use${over ? " use-over" : ""}` },
    make("span", { class: "gauge", "aria-hidden": "true" }, fill, borrowed, excess),
    make("p", {}, make("b", { text: t("gpu_name", { i: each.index ?? "?" }) }), " ", make("span", { text: words })));
}

function events(all) {
  if (!all.length) return make("p", { class: "quiet", text: t("events_none") });
  return make("ol", { class: "events" }, ...all.map((event) => make(
    "li", { class: event.type === "Warning" ? "event event-warning" : "event" },
    make("div", { class: "event-head" },
      make("b", { text: event.reason ?? "" }),
      make("span", { class: "quiet", text: [event.count > 1 && t("times", { n: event.count }), event.last && t("ago", { age: ageOf(event.last) })].filter(Boolean).join(" · ") })),
    make("p", { text: event.message ?? "" }),
  )));
}

/** A GPU of a node, as it is known, and what its agent remembers of it. */
export function gpuDetails(node, gpu, open, past) {
  return [
    facts([
      ["node", link(node.name, () => open.node(node.name))],
      ["model", gpu.model],
      ["uuid", gpu.uuid],
      ["state", gpuSaying(node, gpu)],
    ]),
    remembered(() => past.gpu(node.name, gpu.index), (history) => gpuPast(history, gpu.index, open)),
  ];
}

/** The last hour of a namespace on these nodes, of which some are `left` out. */
export function namespaceDetails(ns, nodes, left, open, past) {
  const read = () => Promise.all(nodes.map(async (node) => [node, await past.namespace(node, ns).catch((error) => error)]));
  return [remembered(read, (answers) => namespacePast(answers, left, open))];
}

/** A node, as it is known; `open.only` shows only it. `readAll` (element): was asked for all data; `past` as for a pod. */
export function nodeDetails(node, open, readAll, past) {
  const card = makeCard(open);
  card.removeAttribute("role");
  updateCard(card, node, () => true);
  for (const each of card.querySelectorAll(".gpu-i")) each.tabIndex = 0;
  const pods = gpusOf(node).flatMap((gpu) => partsOf(gpu).map((part) => [gpu, part]));
  const raw = make("details", {}, make("summary", { text: t("as_json") }));
  const lines = make("pre", { class: "lines", text: t("loading") });
  raw.append(lines);
  raw.addEventListener("toggle", () => raw.open && readAll(lines), { once: true });
  return [
    facts([
      ["state", [!node.ready && t("not_ready"), node.unschedulable && t("cordoned"), node.claims && t("serves_claims")].filter(Boolean).join(" · ")],
      ["gpus", modelsSaying(node)],
      ["given", givenSaying(node)],
      ["share_size", node.shareMiB && memory(node.shareMiB)],
      ["limits", node.limits && enforcementSaying(node.limits).replace(/^[^:：]*[:：] ?/, "")],
      ["policy", node.policy],
      ["driver", node.driver],
      ["address", node.address],
    ]),
    make("p", {}, link(t("only_node"), () => open.only(node.name))),
    card,
    section("pods", pods.length ? make("ul", { class: "plain-list" }, ...pods.map(([gpu, part]) => make(
      "li", { class: "pod-line" },
      make("span", { class: `swatch ${lookOf(part.namespace)}`, "aria-hidden": "true" }),
      podToOpen(part) ? link(partName(part), () => open.pod(...podToOpen(part))) : make("span", { text: partName(part) ?? t("part_hidden") }),
      make("span", { class: "quiet", text: `${placeOf(gpu)} · ${partSaying(node, gpu, part).slice(partName(part)?.length ?? 0).replace(/^[,，]\s*/, "")}` }),
    ))) : make("p", { class: "quiet", text: t("no_pods") })),
    remembered(() => past.incidents(node.name), (answer) => incidentList(answer, (name) => past.incident(node.name, name))),
    raw,
  ];
}

/** The keys that do something on the page. */
export function keyDetails() {
  const keys = [["/", "search"], ["?", "help"], ["← → ↑ ↓", "arrows"], ["Enter", "enter"], ["Esc", "close"]];
  return [make("dl", { class: "facts" }, ...keys.flatMap(([key, what]) => [make("dt", {}, make("kbd", { text: key })), make("dd", { text: t(`keys_${what}`) })]))];
}

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return make("dl", { class: "facts" }, ...known.flatMap(([key, value]) => [
    make("dt", { text: t(key) }), value instanceof Element ? make("dd", {}, value) : make("dd", { text: value }),
  ]));
}

function section(key, ...children) {
  return make("section", {}, make("h3", { text: t(key) }), ...children);
}

function link(text, open) {
  return make("button", { class: "link", type: "button", text, on: { click: open } });
}
