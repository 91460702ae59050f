/** Shows what a node's agent remembers: the last hour of GPUs and containers, and incidents. */

import { age, ageOf, memory } from "./amounts.js";
import { lookOf } from "./colours.js";
import { celsius, conditionFacts, percents, slowedBy, watts } from "./condition.js";
import { make } from "./dom.js";
import { serverSaying } from "./sentences.js";
import { lineRow, stripRow, timeRow } from "./sparklines.js";
import { t } from "./words.js";

const KINDS = ["xid", "gpu-failed", "over-use-eviction", "out-of-memory", "container-died"];
const nameOf = (each) => [each.namespace, each.pod, each.container].filter(Boolean).join("/");
const quiet = (key) => make("p", { class: "quiet", text: t(key) });
const titled = (key, ...children) => make("section", {}, make("h3", { text: t(key) }), ...children);

/** Makes a place that is filled by `show` (answer), which returns elements, once `read` () has the answer, or says why not. */
export function remembered(read, show) {
  const place = make("div", { class: "past" }, quiet("loading"));
  read().then(
    (answer) => place.replaceChildren(...show(answer).filter(Boolean)),
    (error) => place.replaceChildren(make("p", { class: "note", text: serverSaying(error.message) || t("unreachable") })),
  );
  return place;
}

/** The last hour and the condition of a GPU, and the last hour of the containers on it. */
export function gpuPast(history, index, open) {
  const gpu = history.gpus.find((each) => each.gpu === index);
  if (!gpu) return [quiet("hour_none")];
  const on = history.containers.filter((each) => each.gpu === index);
  const facts = gpu.condition ? conditionFacts(gpu.condition) : [];
  return [
    titled("hour", ...gpuRows(gpu, history.step_s, t("now")), longer()),
    titled("condition", facts.length ? make("dl", { class: "facts" }, ...facts.flatMap(([key, text, bad]) => [
      make("dt", { text: t(key) }), make("dd", { class: bad ? "note-warn" : undefined, text }),
    ])) : quiet("condition_none")),
    on.length > 0 && titled("hour_pods", ...containerRows(on, history, open)),
  ];
}

/** Says who knows more than the last hour, with the address that the administrator has set, if any. */
function longer() {
  const href = document.body.dataset.dashboard;
  return href ? make("p", { class: "quiet" }, make("a", { href, target: "_blank", rel: "noopener noreferrer", text: t("longer_there") })) : quiet("longer");
}

/** The last hour of a pod's containers. */
export function podPast(history) {
  return [titled("hour", ...history.containers.length ? [...containerRows(history.containers, history), longer()] : [quiet("hour_none")])];
}

/** The last hour of a namespace. `answers`: [node, history, or why there is none] of each node. */
export function namespacePast(answers, left, open) {
  const shown = answers.filter(([, each]) => each.containers?.length);
  return [
    ...shown.map(([node, each]) => make("section", {}, make("h3", { text: node }), ...containerRows(each.containers, each, open))),
    ...answers.filter(([, each]) => !each.containers).map(([node, error]) => make("p", { class: "note", text: `${node}: ${serverSaying(error.message) || t("unreachable")}` })),
    !shown.length && quiet("hour_none"),
    left > 0 && make("p", { class: "quiet", text: t("more_nodes", { n: left }) }),
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
    return make("div", { class: `spark-of ${lookOf(each.namespace)}` },
      make("p", {},
        make("span", { class: `swatch ${lookOf(each.namespace)}`, "aria-hidden": "true" }), " ",
        pod ? make("button", { class: "link", type: "button", text: nameOf(each), on: { click: () => open.pod(each.namespace, each.pod) } }) : make("span", { text: nameOf(each) }), " ",
        make("span", { class: "quiet", text: [t("gpu_name", { i: each.gpu }), each.granted_mib ? t("part_given", { amount: memory(each.granted_mib) }) : t("part_trespass")].join(" · ") })),
      line("spark_memory", each.used_mib, { most: each.most_mib || total, say: memory, mark: each.granted_mib, stepS }),
      line("spark_sm", each.sm_percent, { most: 100, say: percents, stepS }),
      each.cpu_throttled_percent.some(Boolean) && line("spark_cpu", each.cpu_throttled_percent, { most: 100, say: percents, stepS }));
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
    const item = make("details", { class: "incident" }, make("summary", {}, make("b", { text: kind }), make("span", { class: "quiet", text: ` ${where}` }), make("p", { text: serverSaying(each.sentence) || t("incident_hidden") })));
    item.addEventListener("toggle", () => item.open && item.append(remembered(() => readOne(each.name), wholeIncident)), { once: true });
    return item;
  }))];
}

function wholeIncident({ history, processes, use, decisions }) {
  const amount = (mib) => (mib === null || mib === undefined ? "–" : memory(mib));
  const list = (key, lines) => lines.length > 0 && make("section", {}, make("h4", { text: t(key) }), make("ul", { class: "plain-list" }, ...lines.map((text) => make("li", { text }))));
  return [
    ...history.gpus.flatMap((gpu) => [make("h4", { text: t("gpu_name", { i: gpu.gpu }) }), ...gpuRows(gpu, history.step_s, t("then"))]),
    ...history.containers.length ? containerRows(history.containers, history, null, t("then")) : [],
    list("processes", processes.map((each) => `PID ${each.pid} · ${nameOf(each) || t("no_pod")} · ${t("gpu_name", { i: each.gpu })} · ${amount(each.used_mib)}`)),
    list("limits", use.parts.map((each) => `${nameOf(each)} · ${t("gpu_name", { i: each.gpu })} · ${t("use_of", { used: amount(each.used_mib), given: amount(each.granted_mib) })}${each.held ? ` · ${t(`held_${each.held}`)}` : ""}`)),
    list("decisions", decisions.map((each) => `${each.at} · ${each.text}`)),
  ];
}
