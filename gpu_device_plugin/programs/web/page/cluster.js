/** Holds the cluster as the server tells it. */

/** The nodes and pods that the page shows; changed by events only. */
export class Cluster {
  nodes = new Map();
  waiting = [];
  alone = [];
  notes = [];
  figures = {};
  known = false;
  #sorted = null;
  #served = new Set();

  /** Takes an event; returns whether anything but the time changed. */
  take(event, data) {
    for (const node of data.nodes ?? NONE) {
      for (const gpu of node.gpus) shareNames(gpu);
      this.#judge(node);
    }
    if (event === "cluster") {
      this.nodes = new Map(data.nodes.map((node) => [node.name, node]));
      this.#sorted = null;
      this.known = true;
    } else if (event === "change") {
      for (const node of data.nodes) {
        if (!this.nodes.has(node.name)) this.#sorted = null;
        this.nodes.set(node.name, node);
      }
      for (const name of data.gone) if (this.nodes.delete(name)) this.#sorted = null;
    } else {
      return false;
    }
    for (const key of ["waiting", "alone", "notes", "figures"]) {
      if (data[key] !== undefined) this[key] = data[key];
      else if (event === "cluster") this[key] = key === "figures" ? {} : [];
    }
    return true;
  }

  /** An agent that has not served since the page was opened is not lost: it is worth a look, and no problem. */
  #judge(node) {
    const away = stateOf(node, "agent-away");
    if (!away) this.#served.add(node.name);
    else if (!this.#served.has(node.name)) Object.assign(away, { tone: "warn", parameters: { new: 1 } });
  }

  /** The nodes by name, numbers in it counted as numbers. */
  sorted() {
    byName ??= new Intl.Collator("en", { numeric: true }).compare;
    if (this.#sorted === null) this.#sorted = [...this.nodes.keys()].sort(byName);
    return this.#sorted.map((name) => this.nodes.get(name));
  }
}

let byName = null; // it takes its time to make

const names = new Map();
const once = (name) => names.get(name) ?? (names.set(name, name), name);

/** Has GPUs and pods share the texts of models and namespaces, of which each has one of its own as it is parsed. */
function shareNames(gpu) {
  if (gpu.model) gpu.model = once(gpu.model);
  for (const part of partsOf(gpu)) if (part.namespace) part.namespace = once(part.namespace);
}

/** Whether pods can be scheduled to a node now. */
export function takesPods(node) {
  return Boolean(node.ready) && !node.unschedulable;
}

/** A function of a node whose value is kept with the node: a change replaces it as a whole. */
function kept(make) {
  const known = new WeakMap();
  return (node) => {
    if (!known.has(node)) known.set(node, make(node));
    return known.get(node);
  };
}

const withInstances = kept((node) => {
  const whole = node.instances.flatMap(({ resource, instances }) => (instances ?? []).map((gpu) => ({ ...gpu, resource })));
  return [...node.gpus, ...whole].sort((a, b) => a.index - b.index);
});

/** The GPUs of a node and its MIG instances, by position; those that are given whole have their `resource`. */
export function gpusOf(node) {
  return node.instances ? withInstances(node) : node.gpus;
}

const NONE = [];

/** The pods on a GPU: those that hold a part of it, then those that use it without one. */
export function partsOf(gpu) {
  return gpu.strangers ? [...(gpu.pods ?? NONE), ...gpu.strangers] : gpu.pods ?? NONE;
}

/** Whether a pod has all of a GPU. */
export function isWhole(gpu) {
  return (gpu.pods ?? NONE).some((part) => part.whole);
}

/** A state of a node, a GPU or a part by its code; undefined: it is not in it. */
export function stateOf(subject, code) {
  return subject.states?.find((state) => state.code === code);
}

const isBad = ({ tone }) => tone === "bad";

/**
 * The bad states on a node, as a list of {kind, state, node, gpu, part}.
 *
 * `kind` is the state's code, and "node" for the node's own, of which the worst counts. `namespaces` are those that it concerns.
 */
export const problemsOf = kept((node) => {
  const found = [];
  const namespacesOn = (gpus) => new Set(gpus.flatMap((gpu) => partsOf(gpu).map((part) => part.namespace ?? "")));
  const own = node.states?.find(isBad);
  if (own) found.push({ kind: "node", state: own, node, namespaces: namespacesOn(gpusOf(node)) });
  for (const gpu of gpusOf(node)) {
    for (const state of gpu.states ?? NONE) if (isBad(state)) found.push({ kind: state.code, state, node, gpu, namespaces: namespacesOn([gpu]) });
    for (const part of partsOf(gpu)) {
      for (const state of part.states ?? NONE) if (isBad(state)) found.push({ kind: state.code, state, node, gpu, part, namespaces: new Set([part.namespace ?? ""]) });
    }
  }
  return found.length ? found : NONE;
});

/** Whether memory in use on a node is known. */
export function useKnown(node) {
  return Boolean(node.use?.at);
}

/** Whether the memory in use on a GPU of it is known: a figure that is not there is unknown, and 0 is written. */
export function gpuUseKnown(node, gpu) {
  return useKnown(node) && gpu.usedMiB !== undefined;
}

/** Whether the memory that a pod uses of a GPU is known. */
export function partUseKnown(node, part) {
  return useKnown(node) && !node.use.blind && part.usedMiB !== undefined;
}

/** The pod that is opened for a part, as [namespace, name]; null: there is none, or none that the caller may see. */
export function podToOpen(part) {
  if (part.name === undefined || !part.namespace) return null;
  const [pod] = part.pods ?? [part.name]; // a claim may have several pods, or none
  return pod === undefined ? null : [part.namespace, pod];
}

/** Whether a pod, as "namespace/name", has a part, alone or through a claim that several pods use. */
export function hasPart(name, part) {
  return (part.pods ?? [part.name]).some((pod) => `${part.namespace}/${pod}` === name);
}

export function partName(part) {
  return part.name === undefined ? null : `${part.namespace ? `${part.namespace}/` : ""}${part.name}`;
}

const counted = new Map();

/** The models of a node's GPUs, each with their number: the same value for all nodes that are equal in it. */
export const modelsOf = kept((node) => {
  const all = gpusOf(node).map((gpu) => gpu.model ?? "");
  const key = all.join("\n");
  if (!counted.has(key)) counted.set(key, new Map([...Map.groupBy(all, (model) => model)].map(([model, those]) => [model, those.length])));
  return counted.get(key);
});

/** How much memory the pods of each namespace have of a node, in MiB, as far as they are seen. */
export const namespacesOf = kept((node) => {
  const all = new Map();
  for (const gpu of gpusOf(node)) {
    for (const { namespace = "", shares = 0 } of partsOf(gpu)) all.set(namespace, (all.get(namespace) ?? 0) + shares * (node.shareMiB ?? 0));
  }
  return all;
});

/**
 * What some pods have of a node, those of which `matches` (part) is true. Of `gpus` with such pods, the use of all of them is
 * known on `measuredGpus`. The sums of all pods come from the server.
 */
export function sumsOfParts(node, matches) {
  const sums = { givenMiB: 0, usedMiB: 0, measuredGpus: 0, gpus: 0 };
  for (const gpu of gpusOf(node)) {
    const those = partsOf(gpu).filter(matches);
    if (!those.length) continue;
    sums.gpus += 1;
    for (const part of those) sums.givenMiB += (part.shares ?? 0) * (node.shareMiB ?? 0);
    if (!those.every((part) => partUseKnown(node, part))) continue;
    sums.measuredGpus += 1;
    for (const part of those) sums.usedMiB += part.usedMiB;
  }
  return sums;
}
