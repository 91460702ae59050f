/** Shows every GPU of many nodes as a cell. */

import { gpusOf, gpuUseKnown, isWhole, partsOf, takesPods } from "./cluster.js";
import { make, reconcile, setAttribute, setClass, setStyle, setText } from "./dom.js";
import { cellSaying, stateSaying } from "./sayings.js";

const names = new WeakMap();

/** Makes the tile of a node, empty. */
export function makeTile() {
  const name = make("span", { class: "tile-name", "aria-hidden": "true" });
  const cells = make("span", { class: "cells", role: "presentation" });
  const tile = make("div", { class: "tile", role: "group" }, name, cells);
  names.set(tile, { name, cells });
  return tile;
}

/** Writes a node on its tile. `by`: what the height of a cell shows, "given" or "used". */
export function updateTile(tile, node, by) {
  const to = names.get(tile);
  tile.dataset.node = node.name;
  const state = stateSaying(node);
  setAttribute(tile, "aria-label", state ? `${node.name} (${state})` : node.name);
  setClass(tile, "tile", !takesPods(node) && "tile-closed", !node.ready && "tile-down");
  setText(to.name, node.name);
  reconcile(to.cells, gpusOf(node), (gpu) => gpu.uuid ?? String(gpu.index), makeCell, (cell, gpu) => updateCell(cell, node, gpu, by));
}

function makeCell() {
  return make("button", { class: "cell", type: "button", tabindex: "-1" });
}

function updateCell(cell, node, gpu, by) {
  const part = by === "used" ? partUsed(node, gpu) : gpu.totalShares ? (gpu.usedShares ?? 0) / gpu.totalShares : 0;
  const wrong = partsOf(gpu).some((each) => each.overSince || each.trespassing);
  setClass(
    cell, "cell", `heat-${part === null ? "unknown" : Math.min(4, Math.ceil(part * 4))}`, gpu.reason && "cell-bad", wrong && "cell-over",
    isWhole(gpu) && "cell-whole",
  );
  setStyle(cell, "--part", `${Math.round(100 * Math.min(1, part ?? 0))}%`);
  setAttribute(cell, "aria-label", cellSaying(node, gpu));
}

function partUsed(node, gpu) {
  const all = gpu.memoryMiB || gpu.totalShares * (node.shareMiB ?? 0);
  return gpuUseKnown(node, gpu) && all ? gpu.usedMiB / all : null;
}
