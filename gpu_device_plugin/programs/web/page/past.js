/** Shows what a node's agent remembers: the last hour of GPUs and containers, and incidents. */

import { age, ageOf, memory } from "./amounts.js";
import { lookOf } from "./colours.js";
import { celsius, conditionFacts, percents, slowedBy, watts } from "./condition.js";
import { html, made, show as put } from "./dom.js";
import { lineRow, stripRow, timeRow } from "./sparklines.js";
import { t } from "./words.js";

const KINDS = ["xid", "gpu-failed", "over-use-eviction", "out-of-memory", "container-died"];
const nameOf = (each) => [each.namespace, each.pod, each.container].filter(Boolean).join("/");
const quiet = (key) => html`<p class="quiet">${t(key)}</p>`;
const titled = (key, ...content) => html`<section><h3>${t(key)}</h3>${content}</section>`;

/** Fills a place by `show` (answer), which returns templates, once `read` () has the answer, or says why not. */
export function remember(place, read, show) {
  put(place, quiet("loading"));
  read().then(
    (answer) => put(place, show(answer)),
    (error) => put(place, html`<p class="note">${error.message || t("unreachable")}</p>`),
  );
  return place;
}

/** The same with a place of its own. */
export function remembered(read, show) {
  return remember(made(html`<div class="past"></div>`), read, show);
}

/** The last hour and the condition of a GPU, and the last hour of the containers on it. */
export function gpuPast(history, index, open) {
  const gpu = history.gpus.find((each) => each.gpu === index);
  if (!gpu) return [quiet("hour_none")];
  const on = history.containers.filter((each) => each.gpu === index);
  const facts = gpu.condition ? conditionFacts(gpu.condition) : [];
  return [
    titled("hour", ...gpuRows(gpu, history.step_s, t("now")), longer()),
    titled("condition", facts.length ? html`<dl class="facts">${facts.map(([key, text, bad]) => html`<dt>${t(key)}</dt><dd class=${bad && "note-warn"}>${text}</dd>`)}</dl>` : quiet("condition_none")),
    on.length > 0 && titled("hour_pods", ...containerRows(on, history, open)),
  ];
}

/** Says who knows more than the last hour, with the address that the administrator has set, if any. */
function longer() {
  const href = document.body.dataset.dashboard;
  return href ? html`<p class="quiet"><a href=${href} target="_blank" rel="noopener noreferrer">${t("longer_there")}</a></p>` : quiet("longer");
}

/** The last hour of a pod's containers. */
export function podPast(history) {
  return [titled("hour", ...history.containers.length ? [...containerRows(history.containers, history), longer()] : [quiet("hour_none")])];
}

/** The last hour of a namespace. `answers`: [node, history, or why there is none] of each node. */
export function namespacePast(answers, left, open) {
  const shown = answers.filter(([, each]) => each.containers?.length);
  return [
    ...shown.map(([node, each]) => html`<section><h3>${node}</h3>${containerRows(each.containers, each, open)}</section>`),
    ...answers.filter(([, each]) => !each.containers).map(([node, error]) => html`<p class="note">${`${node}: ${error.message || t("unreachable")}`}</p>`),
    !shown.length && quiet("hour_none"),
    left > 0 && html`<p class="quiet">${t("more_nodes", { n: left })}</p>`,
    longer(),
  ];
}

function gpuRows(gpu, stepS, end) {
  const slowS = gpu.throttle.filter(Boolean).length * stepS;
  const slowed = slowS ? t("slowed_for", { age: age(slowS), reasons: slowedBy(gpu.throttle.reduce((all, each) => all | each, 0)) }) : t("slow_never");
  return [
    line("spark_memory", gpu.used_mib, { most: gpu.total_mib, say: memory, stepS }),
    line("spark_sm", gpu.sm_percent, { most: 100, say: percents, stepS }),
    line("spark_power", gpu.power_w, { most: Math.round((gpu.condition?.power_limit_mw ?? 0) / 1000), say: watts, stepS }),
    line("spark_temperature", gpu.temperature_c, { most: gpu.condition?.slowdown_c ?? 100, say: celsius, stepS }),
    gpu.throttle.some((each) => each !== null) && stripRow(t("spark_slowed"), gpu.throttle, slowed),
    timeRow(gpu.used_mib.length, stepS, end),
  ].filter(Boolean);
}

function containerRows(containers, { step_s: stepS, gpus }, open, end = t("now")) {
  const ordered = [...containers].sort((a, b) => nameOf(a).localeCompare(nameOf(b)) || a.gpu - b.gpu);
  const rows = ordered.map((each) => {
    const total = gpus.find((gpu) => gpu.gpu === each.gpu)?.total_mib ?? 0;
    const pod = open && each.namespace;
    const named = pod ? html`<button class="link" type="button" @click=${() => open.pod(each.namespace, each.pod)}>${nameOf(each)}</button>` : html`<span>${nameOf(each)}</span>`;
    const where = [t("gpu_name", { i: each.gpu }), each.granted_mib ? t("part_given", { amount: memory(each.granted_mib) }) : t("state_trespass")].join(" · ");
    return html`<div class=${`spark-of ${lookOf(each.namespace)}`}>
      <p><span class=${`swatch ${lookOf(each.namespace)}`} aria-hidden="true"></span> ${named} <span class="quiet">${where}</span></p>
      ${line("spark_memory", each.used_mib, { most: each.most_mib || total, say: memory, mark: each.granted_mib, stepS })}
      ${line("spark_sm", each.sm_percent, { most: 100, say: percents, stepS })}
      ${each.cpu_throttled_percent.some(Boolean) && line("spark_cpu", each.cpu_throttled_percent, { most: 100, say: percents, stepS })}</div>`;
  });
  return [...rows, timeRow(containers[0].used_mib.length, stepS, end)];
}

/** A row of what was read at some time at least. */
function line(key, series, how) {
  return series.some((value) => value !== null) && lineRow(t(key), series, how);
}

/** The incidents of a node, the newest first; one that is opened is read (`readOne` (name)) and drawn. */
export function incidentList({ incidents }, readOne) {
  if (!incidents.length) return [titled("incidents", quiet("incidents_none"))];
  return [titled("incidents", ...incidents.map((each) => {
    const kind = KINDS.includes(each.kind) ? t(`incident_${each.kind.replaceAll("-", "_")}`) : each.kind;
    const where = [each.gpu !== null && t("gpu_name", { i: each.gpu }), nameOf(each), t("ago", { age: ageOf(each.at) })].filter(Boolean).join(" · ");
    const opened = ({ target }) => target.open && remember(target.lastElementChild, () => readOne(each.name), wholeIncident);
    return html`<details class="incident" @toggle=${opened}><summary><b>${kind}</b><span class="quiet">${` ${where}`}</span><p>${each.sentence || t("incident_hidden")}</p></summary><div class="past"></div></details>`;
  }))];
}

function wholeIncident({ history, processes, use, decisions }) {
  const amount = (mib) => (mib === null || mib === undefined ? "–" : memory(mib));
  const list = (key, lines) => lines.length > 0 && html`<section><h4>${t(key)}</h4><ul class="plain-list">${lines.map((text) => html`<li>${text}</li>`)}</ul></section>`;
  return [
    ...history.gpus.flatMap((gpu) => [html`<h4>${t("gpu_name", { i: gpu.gpu })}</h4>`, ...gpuRows(gpu, history.step_s, t("then"))]),
    ...history.containers.length ? containerRows(history.containers, history, null, t("then")) : [],
    list("processes", processes.map((each) => `PID ${each.pid} · ${nameOf(each) || t("no_pod")} · ${t("gpu_name", { i: each.gpu })} · ${amount(each.used_mib)}`)),
    list("limits", use.parts.map((each) => `${nameOf(each)} · ${t("gpu_name", { i: each.gpu })} · ${t("use_of", { used: amount(each.used_mib), given: amount(each.granted_mib) })}${each.held ? ` · ${t(`held_${each.held}`)}` : ""}`)),
    list("decisions", decisions.map((each) => `${each.at} · ${each.text}`)),
  ];
}
