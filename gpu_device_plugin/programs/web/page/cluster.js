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

  /** Takes an event; returns whether anything but the time changed. */
  take(event, data) {
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

  /** The nodes by name, numbers in it counted as numbers. */
  sorted() {
    byName ??= new Intl.Collator("en", { numeric: true }).compare;
    if (this.#sorted === null) this.#sorted = [...this.nodes.keys()].sort(byName);
    return this.#sorted.map((name) => this.nodes.get(name));
  }
}

let byName = null; // it takes its time to make

/** Whether pods can be scheduled to a node now. */
export function takesPods(node) {
  return Boolean(node.ready) && !node.cordoned;
}

/** Whether a limit that should hold does not. */
export function unheld(part) {
  return part.held === "differs" || part.held === "missing";
}

const problems = new WeakMap();

/**
 * What asks for attention on a node, as a list of {kind, node, gpu, part}; kept with the node, as its sums are.
 *
 * `kind` is "node", "bad" (a GPU), "over", "trespass" or "unheld" (a part). `namespaces` are those that it concerns.
 */
export function problemsOf(node) {
  const known = problems.get(node);
  if (known !== undefined) return known;
  const found = [];
  const namespacesOf = (gpus) => new Set(gpus.flatMap((gpu) => (gpu.pods ?? []).map((part) => part.ns ?? "")));
  if (node.problem || !node.ready) found.push({ kind: "node", node, namespaces: namespacesOf(node.gpus) });
  for (const gpu of node.gpus) {
    if (gpu.bad) found.push({ kind: "bad", node, gpu, namespaces: namespacesOf([gpu]) });
    for (const part of gpu.pods ?? []) {
      const kinds = { over: part.over, trespass: part.trespass, unheld: unheld(part) };
      for (const kind of Object.keys(kinds)) if (kinds[kind]) found.push({ kind, node, gpu, part, namespaces: new Set([part.ns ?? ""]) });
    }
  }
  problems.set(node, found);
  return found;
}

/** Whether anything on a node asks for attention. */
export function isTroubled(node) {
  return problemsOf(node).length > 0;
}

/** Whether a pod computes nothing with the memory that it holds, as far as that is known. */
export function isIdle(node, part) {
  return partUseKnown(node, part) && part.usedMiB > 0 && part.sm === 0;
}

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

/** The pod that is opened for a part, as [ns, pod]; null: there is none, or none that the caller may see. */
export function podToOpen(part) {
  if (part.pod === undefined || !part.ns) return null;
  const [pod] = part.pods ?? [part.pod]; // a claim may have several pods, or none
  return pod === undefined ? null : [part.ns, pod];
}

/** Whether a pod, as "ns/pod", has a part, alone or through a claim that several pods use. */
export function hasPart(name, part) {
  return (part.pods ?? [part.pod]).some((pod) => `${part.ns}/${pod}` === name);
}

export function partName(part) {
  return part.pod === undefined ? null : `${part.ns ? `${part.ns}/` : ""}${part.pod}`;
}

const sums = new WeakMap();

/**
 * The sums of a node. They are kept with it: a change replaces a node as a whole. All memory in MiB.
 *
 * What is used is summed over the GPUs of which it is known, `usedOf` of them; so it is of each namespace, over the
 * `usedOf` of its `gpus` on which the use of all its pods is known. `cards` are the GPUs that are no MIG instances,
 * `instances` the MIG instances that are given out whole: no other pod can have what is free of them.
 */
export function sumsOf(node) {
  const known = sums.get(node);
  if (known !== undefined) return known;
  const share = node.shareMiB ?? 0;
  const sum = {
    shares: 0, taken: 0, totalMiB: 0, givenMiB: 0, usedMiB: 0, usedOf: 0, freeMiB: 0, largestMiB: 0, largestGpu: null,
    gpus: node.gpus.length, cards: 0, instances: 0, instancesFree: 0, whole: 0, models: new Map(), namespaces: new Map(),
  };
  for (const gpu of node.gpus) {
    const free = gpu.free ?? 0;
    sum.shares += gpu.shares;
    sum.taken += gpu.taken ?? 0;
    if (gpuUseKnown(node, gpu)) {
      sum.usedMiB += gpu.usedMiB;
      sum.usedOf += 1;
    }
    sum.models.set(gpu.model ?? "", (sum.models.get(gpu.model ?? "") ?? 0) + 1);
    sum.cards += gpu.mig ? 0 : 1;
    sum.instances += gpu.resource ? 1 : 0;
    if (takesPods(node) && gpu.resource) {
      sum.instancesFree += free ? 1 : 0;
    } else if (takesPods(node)) {
      sum.freeMiB += free * share;
      if (free * share > sum.largestMiB) [sum.largestMiB, sum.largestGpu] = [free * share, gpu.i];
      if (!gpu.mig && !gpu.taken && !gpu.bad && !gpu.whole && gpu.fenced !== "whole" && !gpu.refusal) sum.whole += 1;
    }
    const used = new Map();
    for (const part of gpu.pods ?? []) {
      const ns = part.ns ?? "";
      const of = sum.namespaces.get(ns) ?? { givenMiB: 0, usedMiB: 0, usedOf: 0, gpus: 0 };
      of.givenMiB += part.shares * share;
      sum.namespaces.set(ns, of);
      used.set(ns, (used.get(ns) ?? 0) + (partUseKnown(node, part) ? part.usedMiB : NaN));
    }
    for (const [ns, usedMiB] of used) {
      const of = sum.namespaces.get(ns);
      of.gpus += 1;
      if (Number.isNaN(usedMiB)) continue;
      of.usedMiB += usedMiB;
      of.usedOf += 1;
    }
  }
  sum.totalMiB = sum.shares * share;
  sum.givenMiB = sum.taken * share;
  sums.set(node, sum);
  return sum;
}
