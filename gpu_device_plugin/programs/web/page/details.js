/** Makes what the side panel shows of a pod and of a node. */

import { ageOf, memory, percent } from "./amounts.js";
import { cardOf, meterOf } from "./cards.js";
import { gpusOf, partName, partsOf, podToOpen, stateOf } from "./cluster.js";
import { lookOf } from "./colours.js";
import { classes, html, made } from "./dom.js";
import { oneStop } from "./keys.js";
import { gpuPast, incidentList, namespacePast, podPast, remembered } from "./past.js";
import { planSection } from "./plans.js";
import { badgesOf, givenSaying, gpuSaying, heldSaying, migId, modelsSaying, partSaying, placeOf, enforcementSaying, stateSaying } from "./sayings.js";
import { say, t } from "./words.js";

// What the server writes for the name of a pod that may not be seen.
const HIDDEN = /\(hidden\)(\/\d+)?/g;

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
    why.length > 0 && section("why", html`<div class="why">${whyBlocks(why, open)}</div>`),
    !pod.node && !pod.deleting && (pod.containers ?? []).some((each) => Object.keys(each.asks ?? {}).length) && planSection(plans),
    pod.node && remembered(() => past.pod(pod.node, pod.namespace, pod.name), podPast),
    section("containers", (pod.containers ?? []).map(container)),
    section("events", events(pod.events ?? [])),
  ];
}

/** Why a pod waits or where it is: sentences, and of each node that is explained its GPUs, a row with a bar for each. */
function whyBlocks(messages, open) {
  const blocks = [];
  for (const message of messages) {
    const { code, parameters } = message;
    if (code === "of-node") blocks.push({ message, rows: [] });
    else if (code === "gpu-row" && blocks.at(-1)?.rows) blocks.at(-1).rows.push(parameters);
    else if (code !== "gpu-heading" && code !== "empty") blocks.push({ message });
  }
  return blocks.map(({ message, rows }) => {
    if (!rows) return html`<p class=${message.code?.startsWith("room-") && "wait-room"}>${say(message).trim()}</p>`;
    const { node, why } = message.parameters;
    return html`<h4>${link(node, () => open.node(node))} <span>${say(why)}</span></h4>${rows.length > 0 && html`<ol class="why-gpus">${rows.map(whyRow)}</ol>`}`;
  });
}

function whyRow({ gpu, model, free, verdict, held }) {
  const [name, pods] = [`GPU ${say(gpu).trim()}`, held.parameters?.pods ?? []];
  const { shares = 0 } = free.parameters;
  const why = [say(verdict), pods.length > 0 && t("why_held", { pods: say(held).replace(HIDDEN, t("part_hidden")) })].filter(Boolean).join(t("list_comma"));
  // Why it is out of service stands in a message within another.
  const bad = JSON.stringify(verdict).includes('"gpu-unhealthy"');
  return html`<li class=${classes("why-gpu", bad && "why-bad", ["would-be-chosen", "has-room"].includes(verdict.code) && "why-good")}>
      <span>${name} <span class="quiet">${model}</span></span>
      <span class=${classes("bar", bad && "bar-bad")} role="img" aria-label=${t("why_row", { gpu: name, free: say(free), why })}>
        ${pods.map(({ parameters: { pod, shares: n } }) => html`<span class=${`why-part ${lookOf(pod.replace(HIDDEN, "").split("/")[0])}`} .style=${`flex-grow: ${n}`}></span>`)}
        <span class="bar-free" .style=${`flex-grow: ${Math.max(0, shares - pods.reduce((sum, { parameters }) => sum + parameters.shares, 0))}`}></span>
      </span>
      <span aria-hidden="true">${t("bar_free", { free: say(free) })}</span>
      <span class="why-verdict" aria-hidden="true">${why}</span>
    </li>`;
}

function container(each) {
  const asks = Object.entries(each.asks ?? {}).map(([name, n]) => `${name.split("/").at(-1)}: ${n}`);
  const variables = Object.entries(each.variables ?? {});
  const gpus = each.gpus ?? [];
  const uses = each.use ?? [];
  return html`<article class="box">
    <h4><span class="box-name">${each.name}</span>
      ${each.kind && each.kind !== "app" && html`<span class="badge">${each.kind === "init" ? t("kind_init") : t("kind_sidecar")}</span>`}
      ${asks.length > 0 && html`<span class="quiet">${`${t("asks")} ${asks.join(", ")}`}</span>`}</h4>
    ${gpus.length > 0 && html`<ul class="plain-list">${gpus.map(gpuOf)}</ul>`}
    ${uses.map(use)}
    ${gpus.length > 0 && !uses.length && html`<p class="quiet">${t("use_unknown")}</p>`}
    ${variables.length > 0 && html`<details open><summary>${t("variables")}</summary><dl class="variables">${variables.map(pair)}</dl></details>`}
  </article>`;
}

function gpuOf(gpu) {
  const amount = gpu.whole ? t(gpu.mig ? "part_whole_mig" : "part_whole") : memory(gpu.grantedMiB ?? 0);
  const which = [gpu.mig && `MIG ${migId(gpu)} ${gpu.mig.profile}`, gpu.model, gpu.uuid].filter(Boolean).join(" · ");
  return html`<li><b>${t("gpu_name", { i: gpu.index ?? "?" })}</b>${` ${amount} `}<span class="quiet">${which}</span></li>`;
}

function pair([name, value]) {
  return html`<dt>${name}</dt><dd>${value}</dd>`;
}

function use(each) {
  const given = each.grantedMiB ?? 0;
  const used = each.usedMiB === undefined ? null : memory(each.usedMiB);
  const over = stateOf(each, "over") || stateOf(each, "trespass");
  const words = [
    given ? t("use_of", { used: used ?? "–", given: memory(given) }) : t("part_used", { amount: used ?? "–" }),
    used === null && t("used_unknown"),
    each.smPercent !== undefined && t("part_sm", { percent: percent(each.smPercent / 100) }),
    each.enforcement && enforcementSaying(each.enforcement),
    heldSaying(each),
    each.foundMiB && !stateOf(each, "limit-not-held") && t("found_limit", { amount: memory(each.foundMiB) }),
    each.limitMiB !== undefined && t("part_limit", { amount: memory(each.limitMiB) }),
    ...(each.states ?? []).map((state) => stateSaying({}, state)),
    each.why,
  ].filter(Boolean).join(" · ");
  // Beyond the guarantee the bar goes on hatched, beyond the limit in red.
  const { ends, guarantee, limit, used: end } = meterOf(given, each);
  return html`<div class=${classes("use", over && "use-over")}>
    <span class="gauge" aria-hidden="true">
      <span class="gauge-fill" .style=${`width: ${ends(Math.min(guarantee, end))}`}></span>
      <span class="borrowed" .style=${`left: ${ends(guarantee)}; width: ${ends(Math.max(0, Math.min(limit, end) - guarantee))}`}></span>
      <span class="excess" ?hidden=${end <= limit} .style=${`left: ${ends(limit)}`}></span>
    </span>
    <p><b>${t("gpu_name", { i: each.index ?? "?" })}</b> <span>${words}</span></p></div>`;
}

function events(all) {
  if (!all.length) return html`<p class="quiet">${t("events_none")}</p>`;
  return html`<ol class="events">${all.map((event) => html`<li class=${classes("event", event.type === "Warning" && "event-warning")}>
    <div class="event-head"><b>${event.reason}</b><span class="quiet">${[event.count > 1 && t("times", { n: event.count }), event.last && t("ago", { age: ageOf(event.last) })].filter(Boolean).join(" · ")}</span></div>
    <p>${event.message}</p></li>`)}</ol>`;
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
  const card = made(cardOf(node, () => true));
  card.removeAttribute("role");
  for (const each of card.querySelectorAll(".gpu-i")) each.tabIndex = 0;
  oneStop(card, ".part");
  const pods = gpusOf(node).flatMap((gpu) => partsOf(gpu).map((part) => [gpu, part]));
  return [
    facts([
      ["state", badgesOf(node).map((state) => stateSaying(node, state, "badge")).join(" · ")],
      ["gpus", modelsSaying(node)],
      ["given", givenSaying(node)],
      ["share_size", node.shareMiB && memory(node.shareMiB)],
      ["limits", node.limits && enforcementSaying(node.limits).replace(/^[^:：]*[:：] ?/, "")],
      ["policy", node.policy],
      ["driver", node.driver],
      ["address", node.address],
    ]),
    html`<p>${link(t("only_node"), () => open.only(node.name))}</p>`,
    card,
    section("pods", pods.length ? html`<ul class="plain-list">${pods.map(([gpu, part]) => podLine(node, gpu, part, open))}</ul>` : html`<p class="quiet">${t("no_pods")}</p>`),
    remembered(() => past.incidents(node.name), (answer) => incidentList(answer, (name) => past.incident(node.name, name))),
    html`<details @toggle=${({ target }) => target.open && readAll(target.lastElementChild)}><summary>${t("as_json")}</summary><pre class="lines"></pre></details>`,
  ];
}

function podLine(node, gpu, part, open) {
  const name = partName(part);
  const pod = podToOpen(part);
  const rest = `${placeOf(gpu)} · ${partSaying(node, gpu, part).slice(name?.length ?? 0).replace(/^[,，]\s*/, "")}`;
  return html`<li class="pod-line">
      <span class=${`swatch ${lookOf(part.namespace)}`} aria-hidden="true"></span>
      ${pod ? link(name, () => open.pod(...pod)) : html`<span>${name ?? t("part_hidden")}</span>`}
      <span class="quiet">${rest}</span>
    </li>`;
}

/** The keys that do something on the page. */
export function keyDetails() {
  const keys = [["/", "search"], ["c", "cards"], ["m", "map"], ["?", "help"], ["← → ↑ ↓", "arrows"], ["Enter", "enter"], ["Esc", "close"]];
  return html`<dl class="facts">${keys.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${t(`keys_${what}`)}</dd>`)}</dl>`;
}

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return html`<dl class="facts">${known.map(([key, value]) => pair([t(key), value]))}</dl>`;
}

function section(key, content) {
  return html`<section><h3>${t(key)}</h3>${content}</section>`;
}

function link(text, open) {
  return html`<button class="link" type="button" @click=${open}>${text}</button>`;
}
