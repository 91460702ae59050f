/** Decides which nodes and pods the filters of the address let through. */

import { gpusOf, modelsOf, partName, partsOf, problemsOf } from "./cluster.js";
import { say } from "./words.js";

/** Whether a node is among those asked for by name and model. An exact name means this node only. */
function hasPlace(filters, node, names) {
  if (filters.node && (names.has(filters.node) ? node.name !== filters.node : !contains(node.name, filters.node))) return false;
  return !filters.model || modelsOf(node).has(filters.model);
}

/** Returns nodes in the order that is asked for; each order keeps the one by name among equals. */
export function inOrder(sort, nodes) {
  const full = ({ sums, usedShares, totalShares }) => (sums?.totalMiB ? (sums.givenMiB ?? 0) / sums.totalMiB : (usedShares ?? 0) / (totalShares || 1));
  const keys = { full: (node) => -full(node), free: (node) => -(node.sums?.freeMiB ?? 0), trouble: (node) => -problemsOf(node).length };
  const key = keys[sort];
  return key ? [...nodes].sort((a, b) => key(a) - key(b)) : nodes;
}

/**
 * What the filters ask for of one node: `every`: of all its pods; else of those of which `part` (part) is true. `problem` (problem):
 * whether it is about these.
 */
export function matcherOf({ ns, q }, node) {
  const all = !q || nodeMatches(q, node);
  const found = (part) => all || contains(partName(part) ?? "", q);
  return {
    every: all && !ns,
    part: (part) => (!ns || part.namespace === ns) && found(part),
    problem: ({ namespaces, part }) => (!ns || namespaces.has(ns)) && (part ? found(part) : all),
  };
}

/** Whether a node is shown: it or a pod on it is what the filters ask for. */
export function isShown(filters, node, names) {
  if (!hasPlace(filters, node, names)) return false;
  const { every, part, problem } = matcherOf(filters, node);
  if (filters.trouble && !problemsOf(node).some(problem)) return false;
  return every || gpusOf(node).some((gpu) => partsOf(gpu).some(part));
}

/** Whether a pending pod is what the filters ask for. It has no node and no model yet. */
export function waitMatches(filters, wait) {
  if (filters.node || filters.model || (filters.ns && wait.namespace !== filters.ns)) return false;
  return !filters.q || [`${wait.namespace}/${wait.name}`, say(wait.asks), say(wait.why)].some((text) => contains(text ?? "", filters.q));
}

function nodeMatches(q, node) {
  return [node.name, node.problem, node.address].some((text) => contains(text ?? "", q))
    || [...modelsOf(node).keys()].some((model) => contains(model, q))
    || gpusOf(node).some((gpu) => contains(gpu.reason ?? gpu.cordon?.why ?? "", q) || contains(gpu.uuid ?? "", q));
}

function contains(text, part) {
  return text.toLowerCase().includes(part.toLowerCase());
}
