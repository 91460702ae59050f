/** Wires the page: what the server tells and what a person asks for become what is shown. */

import * as address from "./address.js";
import { setClock } from "./amounts.js";
import { cardOf, isFilled, openAt } from "./cards.js";
import { Cluster, gpusOf, hasPart, modelsOf, namespacesOf, partsOf, problemsOf } from "./cluster.js";
import { gpuDetails, keyDetails, namespaceDetails, nodeDetails, podDetails } from "./details.js";
import { html, reconciling, rewrite, show } from "./dom.js";
import { SidePanel } from "./side_panel.js";
import { isFiltered, listenToFilters, showFilters } from "./filterbar.js";
import { inOrder, isShown, matcherOf, waitMatches } from "./filters.js";
import { TileFit, tileOf } from "./heatmap.js";
import { moveOnBars, moveOnMap, moveStop, oneStop } from "./keys.js";
import { showAlone, showProblems, showWaiting } from "./lists.js";
import { Live, SILENCE_MS } from "./live.js";
import { inWindow, Looking } from "./looking.js";
import { placeOf, staleSaying } from "./sayings.js";
import { ask, forgetToken, hasToken, Refused, setToken, takeToken } from "./server.js";
import { Slices } from "./slices.js";
import { Status } from "./status.js";
import { showNamespaces, showSums, total, worstFirst } from "./summary.js";
import { showTips } from "./tip.js";
import { Trends } from "./trends.js";
import { say, speak, spoken, t, translate } from "./words.js";

// From so many nodes on the map is what one sees first.
const MAP_NODES = 12;
// Of more, cards get their bars when they come into sight.
const MANY_NODES = 60;
const TYPING_MS = 150;
const REFRESH_MS = 1_000;
// Agents record as often as that.
const REMEMBERED_MS = 15_000;
const MOST_READ = 16;

const $ = (id) => document.getElementById(id);
const cluster = new Cluster();
const status = new Status({ status: $("status"), text: $("status-text"), lost: $("lost"), lostText: $("lost-text"), said: $("said") });
let asked = address.read();
let session = {};
let askedNow = false;
// The timer of somebody who types; what stands in the fields is theirs until it ends.
let typing = 0;
let refreshing = 0;
// What a card or tile shows of its node: it is written again when its node or this is another.
let look = "";
const trends = new Trends();
const tiles = new TileFit();
const written = new WeakMap();

const open = {
  pod: (ns, pod) => go({ pod: `${ns}/${pod}`, panel: "" }),
  node: (name) => go({ panel: name, pod: "" }),
  gpu: (name, index) => go({ panel: `${name}/${index}`, pod: "" }),
  namespace: (ns) => go({ panel: `/${ns}`, pod: "" }),
  only: (name) => go({ node: name, panel: "", pod: "" }),
};
const answers = new Map();
const past = {
  gpu: (node, index) => readPast(`history/${encodeURIComponent(node)}?gpu=${index}`),
  pod: (node, ns, name) => readPast(`history/${encodeURIComponent(node)}?pod=${encodeURIComponent(`${ns}/${name}`)}`),
  namespace: (node, ns) => readPast(`history/${encodeURIComponent(node)}?namespace=${encodeURIComponent(ns)}`),
  incidents: (node) => readPast(`incidents/${encodeURIComponent(node)}`),
  incident: (node, name) => readPast(`incidents/${encodeURIComponent(node)}/${encodeURIComponent(name)}`),
};
const sidePanel = new SidePanel($("side-panel"), () => go({ pod: "", panel: "" }));
const showing = new Slices(showAll, {
  done({ start }) {
    performance.clearMeasures("gpushare:show"); // the browser keeps all that is not cleared
    performance.measure("gpushare:show", { start });
  },
});
let troubles = 0;
const looking = new Looking(lookedAt);
let filtered = [];
const coming = new Set();
const filling = new Slices(fillAll, { sliceMs: 4 });
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting) coming.add(target);
    else coming.delete(target);
  }
  if (coming.size) filling.ask();
}, { rootMargin: "600px" });

/** Changes what is asked for, in the address and on the page. */
function go(change, { replace = false } = {}) {
  asked = { ...asked, ...change };
  askedNow ||= ["ns", "node", "model", "q", "trouble"].some((name) => name in change);
  address.write(asked, { replace });
  showing.restart();
  if ("pod" in change || "panel" in change) showSidePanel();
}

/** Shows everything, as a generator for `Slices`: a card or tile is written whole, with its node as it is by then. */
function* showAll() {
  if (!cluster.known) return;
  const nodes = cluster.sorted();
  yield;
  const [namespaces, models] = [new Set(cluster.waiting.map((wait) => wait.namespace)), new Set()];
  for (const node of nodes) {
    for (const name of namespacesOf(node).keys()) if (name) namespaces.add(name);
    for (const name of modelsOf(node).keys()) if (name) models.add(name);
    yield;
  }
  const sampled = trends.take(nodes);
  const names = new Set(cluster.nodes.keys());
  const view = asked.view || (nodes.length >= MAP_NODES ? "map" : "cards");
  const by = asked.by || "given";
  const found = [];
  for (const node of nodes) {
    if (isShown(asked, node, names)) found.push(node);
    yield;
  }
  const shown = inOrder(asked.sort, found);
  const all = total(shown, asked);
  const waits = cluster.waiting.filter((wait) => waitMatches(asked, wait));
  const problems = worstFirst(all.problems);
  showFilters($("filters"), { ...asked, view, by }, { namespaces: [...namespaces].sort(), models: [...models].sort(), nodes: nodes.map((node) => node.name) }, { typing: typing !== 0 });
  yield;
  // Before the cluster has been read nothing is known, also not that there is none.
  const isRead = status.wasLive || nodes.length > 0 || cluster.waiting.length > 0;
  showSums($("sums"), all, !isRead ? undefined : asked.node || asked.model ? null : waits, showProblem);
  troubles = all.problems.length;
  showTitle();
  showNamespaces($("keys"), all, asked.ns, (ns) => go({ ns: asked.ns === ns ? "" : ns }));
  yield;
  yield* showProblems($("problems"), problems, open);
  yield* showWaiting($("waits"), waits, open.pod);
  yield* showAlone($("alones"), cluster.alone, open.pod);
  $("attention").hidden = !problems.length;
  $("waiting").hidden = !waits.length;
  $("alone").hidden = !cluster.alone.length;
  show($("calm"), [t("attention_none"), t("waiting_none")].join(t("list_comma")));
  $("calm").hidden = problems.length > 0 || waits.length > 0 || cluster.alone.length > 0 || !shown.length;
  // The room at the side stays, so that nodes keep their places when a problem comes or goes.
  document.body.classList.toggle("has-side", nodes.length > 0 || waits.length > 0 || cluster.alone.length > 0);
  document.body.classList.toggle("on-map", view === "map");
  showNotes();
  if (view === "map") tiles.fit($("map"), shown.length);
  document.body.classList.toggle("on-roomy", tiles.roomy);
  look = [asked.ns, asked.q, spoken(), view, by, tiles.roomy].join("\n");
  yield* showNodes(shown, view, by);
  if (sampled && view === "map" && tiles.roomy) for (const tile of $("map").children) tile.querySelector(".trend path").setAttribute("d", trends.path(tile.dataset.node, by));
  filtered = shown.length < nodes.length ? shown : [];
  looking.changed();
  const empty = shown.length ? "" : nodes.length ? t("none_shown") : cluster.alone.length ? "" : t(status.wasLive ? "no_nodes" : "reading");
  show($("empty"), empty);
  $("empty").hidden = !empty;
  const saying = !isRead ? "" : isFiltered(asked) ? t("shown_of", { n: shown.length, all: nodes.length }) : t("shown", { n: nodes.length });
  show($("shown"), saying);
  // To a screen reader it is said as the answer to a person only.
  document.body.classList.toggle("is-filtered", isFiltered(asked));
  if (askedNow) status.say(saying);
  askedNow = false;
}

function showTitle() {
  const title = [t("title"), session.context].filter(Boolean).join(" · ");
  document.title = troubles ? t("title_problems", { n: troubles, title }) : title;
}

/** Leads to the first problem of a kind. */
function showProblem(kind) {
  const item = $("problems").querySelector(`[data-kind="${kind}"]`) ?? $("problems").firstElementChild;
  item?.scrollIntoView({ block: "center" });
  item?.querySelector("button").focus({ preventScroll: true });
}

function* showNodes(shown, view, by) {
  const [cards, map] = [$("cards"), $("map")];
  cards.hidden = view !== "cards" || !shown.length;
  map.hidden = view !== "map" || !shown.length;
  const lazy = shown.length > MANY_NODES;
  cards.classList.toggle("cards-many", lazy);
  // Each as its node is by then; one that is gone meanwhile is taken away by the next pass.
  const writing = (write) => (before, element) => {
    const node = cluster.nodes.get(before.name) ?? before;
    return isWritten(node) && element ? null : write(node, element);
  };
  const card = (node, element) => cardOf(node, matcher(node), { shallow: lazy && !(element && isFilled(element)) });
  yield* reconciling(cards, view === "cards" ? shown : [], (node) => node.name, writing(card), (element, isNew) => {
    oneStop(element, ".part");
    if (isNew) seen.observe(element);
  });
  yield* reconciling(map, view === "map" ? shown : [], (node) => node.name, writing((node) => tileOf(node, by, tiles.roomy ? trends.path(node.name, by) : null)));
  if (view === "map") oneStop(map, ".cell");
}

/** The names of the nodes that a person looks at: of the open details, in the window, then of what the filters let through. */
function* lookedAt() {
  if (asked.panel) yield asked.panel.split("/")[0];
  for (const node of asked.pod ? cluster.nodes.values() : []) if (hasPod(node)) yield node.name;
  for (const parent of [$("cards"), $("map")]) if (!parent.hidden) yield* inWindow(parent);
  for (const node of filtered) yield node.name;
}

/** Gives cards their bars, as they come into sight. */
function* fillAll() {
  for (const card of coming) {
    coming.delete(card);
    seen.unobserve(card);
    const node = cluster.nodes.get(card.dataset.node);
    if (node && !isFilled(card)) rewrite(card, cardOf(node, matcher(node)));
    oneStop(card, ".part");
    yield;
  }
}

function matcher(node) {
  return matcherOf(asked, node).part;
}

/** Whether a node is written as it is, wherever it is shown; from now on it is taken to. */
function isWritten(node) {
  // Only what is wrong has an age.
  const now = problemsOf(node).length || staleSaying(node) ? `${look}\n${Math.floor(Date.now() / 60_000)}` : look;
  if (written.get(node) === now) return true;
  written.set(node, now);
  return false;
}

function showNotes() {
  const { source, why } = cluster.figures ?? {};
  // Without a reason nothing is wrong: the first agents have not answered yet.
  const figures = source === "none" ? t("figures_none") : source === "nodes" && why ? t("figures_nodes") : "";
  const reason = why ? say(why).replace(/^./u, (first) => first.toUpperCase()) : "";
  const notes = [...cluster.notes.map(say), figures && [figures, reason].filter(Boolean).join(" ")].filter(Boolean);
  show($("notes"), notes.map((note) => html`<p>${note}</p>`));
  $("notes").hidden = !notes.length || !(cluster.nodes.size || cluster.notes.length);
}

function showSidePanel({ again = false } = {}) {
  if (asked.pod.includes("/")) {
    const [ns, name] = asked.pod.split("/", 2);
    sidePanel.open(name, async (signal) => {
      const path = `${encodeURIComponent(ns)}/${encodeURIComponent(name)}`;
      const answer = await ask(`pods/${path}`, { signal });
      const plans = { read: async () => (await ask(`plans/${path}`, { signal })).json(), node: (node) => cluster.nodes.get(node) ?? {} };
      return podDetails(await answer.json(), open, plans, past);
    }, { again });
  } else if (asked.panel && cluster.known) {
    const [title, details] = panel(...asked.panel.split("/"));
    sidePanel.open(title, async () => details ?? html`<p class="quiet">${t("none_shown")}</p>`, { again });
  } else if (!asked.panel && !asked.pod) sidePanel.close();
}

/** Title and details of a node, NODE, of a GPU, NODE/INDEX, or of a namespace, /NAMESPACE; no details of what is not there. */
function panel(name, of) {
  if (!name) {
    const nodes = cluster.sorted().filter((each) => namespacesOf(each).has(of)).map((each) => each.name);
    return [t("hour_of", { ns: of }), namespaceDetails(of, nodes.slice(0, MOST_READ), nodes.length - MOST_READ, open, past)];
  }
  const node = cluster.nodes.get(name);
  if (of === undefined) return [name, node && nodeDetails(node, open, (to) => readNode(name, to), past)];
  const gpu = node && gpusOf(node).find((each) => String(each.index) === of);
  return [t("gpu_at", { node: name, gpu: gpu ? placeOf(gpu) : of }), gpu && gpuDetails(node, gpu, open, past)];
}

/** Reads what an agent remembers, unless that was done a moment ago: the side panel is filled again at every change. */
function readPast(path) {
  for (const [known, { at }] of answers) if (performance.now() - at > REMEMBERED_MS) answers.delete(known);
  if (!answers.has(path)) answers.set(path, { at: performance.now(), answer: ask(path).then((answer) => answer.json()) });
  return answers.get(path).answer;
}

async function readNode(name, to) {
  show(to, t("loading"));
  try {
    const answer = await ask(`nodes/${encodeURIComponent(name)}`);
    show(to, JSON.stringify((await answer.json()).node, null, 2));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    show(to, error.message || t("unreachable"));
  }
}

const live = new Live({
  event(name, data) {
    if (data.read?.now) setClock(data.read.now);
    status.heard(data.read);
    const first = !cluster.known;
    if (name === "cluster" && !first && !session.version) readSession();
    if (name === "cluster") looking.follow(data.stream);
    if (!cluster.take(name, data)) return;
    showing.ask();
    if (first) showSidePanel();
    else if (name === "cluster" || concernsSidePanel(data)) refreshSidePanel();
  },
  lost(why, nextMs) {
    status.lost(why instanceof Refused ? why.message : t(why, { n: SILENCE_MS / 1000 }), nextMs);
  },
  login: askForToken,
});

/** Whether a change is about what the side panel shows. */
function concernsSidePanel({ nodes, gone, waiting }) {
  const [name, of] = asked.panel.split("/");
  if (asked.panel) return nodes.some((node) => (name ? node.name === name : namespacesOf(node).has(of))) || gone.includes(name);
  return Boolean(asked.pod) && (waiting !== undefined || nodes.some(hasPod));
}

/** Whether the pod of the side panel is on a node. */
function hasPod(node) {
  return gpusOf(node).some((gpu) => partsOf(gpu).some((part) => hasPart(asked.pod, part)));
}

/** Shows what became of the side panel's node or pod, a while after a change: a busy cluster is not asked at each one. */
function refreshSidePanel() {
  refreshing ||= setTimeout(() => {
    refreshing = 0;
    if (sidePanel.isAtRest) showSidePanel({ again: true });
  }, REFRESH_MS);
}

function askForToken(refused) {
  const form = refused.login === "token";
  $("page").hidden = true;
  $("login").hidden = false;
  $("forget").hidden = true;
  $("status").hidden = true;
  const why = $("login-why");
  why.hidden = form && !hasToken();
  show(why, form ? t("token_wrong") : t("token_opened"));
  for (const name of ["label", "input", ".go", ".lines"]) $("login-form").querySelector(name).hidden = !form;
  forgetToken();
  if (form) $("token").focus();
}

async function begin() {
  $("page").hidden = false;
  $("login").hidden = true;
  $("status").hidden = false;
  live.start();
  await readSession();
}

async function readSession() {
  try {
    session = await (await ask("session")).json();
    if (session.dashboard) document.body.dataset.dashboard = session.dashboard;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return; // the stream says it
  }
  showSession();
}

function showSession() {
  const words = [session.context && t("in_context", { context: session.context }), session.user && t("as_user", { user: session.user })];
  show($("where"), words.filter(Boolean).join(" · "));
  $("forget").hidden = session.mode !== "cluster" || !hasToken();
  showTitle();
}

function setTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $("theme").value = theme;
}

function setLanguage(tag) {
  speak(tag);
  translate(document);
  $("lang").value = spoken();
  status.show();
  showSession();
}

function listen() {
  let typed = {};
  listenToFilters($("filters"), (change, { typing: isTyping }) => {
    clearTimeout(typing);
    typed = { ...typed, ...change };
    const take = (how) => {
      typing = 0;
      go(typed, how);
      typed = {};
    };
    if (!isTyping) take();
    // What is typed within one go is one step back.
    else typing = setTimeout(() => take({ replace: Object.keys(typed).some((name) => asked[name] && typed[name]) }), TYPING_MS);
  });
  addEventListener("popstate", () => {
    const before = asked.lang;
    asked = address.read();
    clearTimeout(typing);
    [typing, typed] = [0, {}];
    if (asked.lang !== before) setLanguage(asked.lang);
    showing.restart();
    showSidePanel();
  });
  // A new address of a command that was started again, pasted into this tab: the page is not loaded again for that.
  addEventListener("hashchange", () => takeToken() && begin());
  $("theme").addEventListener("change", (event) => {
    localStorage.setItem("gpushare-theme", event.target.value);
    setTheme(event.target.value);
  });
  $("lang").addEventListener("change", (event) => {
    setLanguage(event.target.value);
    go({ lang: event.target.value });
    showSidePanel();
  });
  $("hour").addEventListener("click", () => open.namespace(asked.ns));
  $("lost-now").addEventListener("click", () => live.now());
  $("forget").addEventListener("click", () => {
    forgetToken();
    location.reload();
  });
  $("login-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setToken($("token").value.trim());
    $("token").value = "";
    begin();
  });
  const showKeys = () => sidePanel.open(t("keys_title"), async () => keyDetails());
  $("help").addEventListener("click", showKeys);
  addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.("input, select, textarea") || $("page").hidden) return;
    if (event.key === "/") {
      event.preventDefault(); // else the letter is typed there
      $("f-q").focus();
      $("f-q").select();
    } else if (event.key === "?") showKeys();
    else if (event.key === "c" || event.key === "m") go({ view: event.key === "c" ? "cards" : "map" });
  });
  $("cards").addEventListener("keydown", moveOnBars);
  $("side-panel").addEventListener("keydown", moveOnBars);
  $("map").addEventListener("keydown", moveOnMap);
  addEventListener("focusin", (event) => {
    moveStop(event, ".gpus", ".part");
    moveStop(event, ".map", ".cell");
  });
  // Of thousands of cards and tiles a handler for each would be more than what they show.
  addEventListener("click", ({ target }) => {
    const node = cluster.nodes.get(target.closest("[data-node]")?.dataset.node);
    if (node) openAt(target, node, open);
  });
  for (const event of ["scroll", "resize"]) addEventListener(event, () => looking.changed(), { passive: true });
  addEventListener("resize", () => showing.ask(), { passive: true });
  showTips(document);
  // The ages on the page, and the lines of the map; a cheap look at what changes with time alone.
  setInterval(() => showing.ask(), 10_000);
}

takeToken();
setTheme(localStorage.getItem("gpushare-theme") ?? "auto");
setLanguage(asked.lang);
listen();
begin();
