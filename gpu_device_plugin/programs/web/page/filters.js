/** Decides which nodes and pods the filters of the address let through. */

import { gpusOf, modelsOf, partName, partsOf, problemsOf } from "./cluster.js";
import { say } from "./words.js";

/** Whether a node is among those asked for by name and model. An exact name means this node only. */
export function hasPlace(filters, node, names) {
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

/** Whether a problem is what is searched for. */
export function problemMatches(filters, { node, part }) {
  return !filters.q || nodeMatches(filters.q, node) || (part !== undefined && contains(partName(part) ?? "", filters.q));
}

/** Whether a node is shown: it or a pod on it is what the filters ask for. */
export function isShown(filters, node, names) {
  if (!hasPlace(filters, node, names) || (filters.trouble && !problemsOf(node).length)) return false;
  if (!filters.ns && !filters.q) return true;
  if (!filters.ns && nodeMatches(filters.q, node)) return true;
  return gpusOf(node).some((gpu) => partsOf(gpu).some((part) => partMatches(filters, part, node)));
}

/** Whether a pod's part of a GPU is what the filters ask for; the others on the same bar are dimmed. */
export function partMatches(filters, part, node) {
  if (filters.ns && part.namespace !== filters.ns) return false;
  return !filters.q || contains(partName(part) ?? "", filters.q) || nodeMatches(filters.q, node);
}

/** Whether a waiting pod is what the filters ask for. It has no node and no model yet. */
export function waitMatches(filters, wait) {
  if (filters.ns && wait.namespace !== filters.ns) return false;
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
