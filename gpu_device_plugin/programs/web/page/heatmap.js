/** Shows every GPU of many nodes as a cell. */

import { gpusOf, gpuUseKnown, isWhole, partsOf, takesPods } from "./cluster.js";
import { byHand, classes, html, made, setAttributes } from "./dom.js";
import { cellSaying, closedSaying } from "./sayings.js";

/** The tile of a node. `by`: what the height of a cell shows, "given" or "used". */
export function tileOf(node, by) {
  const state = closedSaying(node);
  const look = classes("tile", !takesPods(node) && "tile-closed", !node.ready && "tile-down");
  return html`<div class=${look} role="group" data-node=${node.name} aria-label=${state ? `${node.name} (${state})` : node.name}>
      <span class="tile-name" aria-hidden="true">${node.name}</span>
      <span class="cells" role="presentation" ${byHand((cells) => writeCells(cells, node, by))}></span>
    </div>`;
}

const empty = made(html`<button class="cell" type="button" tabindex="-1"></button>`);

/** Of thousands of cells, templates would be slower, and larger than what they show. */
function writeCells(cells, node, by) {
  const gpus = gpusOf(node);
  while (cells.childElementCount > gpus.length) cells.lastElementChild.remove();
  gpus.forEach((gpu, n) => writeCell(cells.children[n] ?? cells.appendChild(empty.cloneNode()), node, gpu, by));
}

function writeCell(cell, node, gpu, by) {
  const part = by === "used" ? partUsed(node, gpu) : gpu.totalShares ? (gpu.usedShares ?? 0) / gpu.totalShares : 0;
  const wrong = partsOf(gpu).some((each) => each.overSince || each.trespassing);
  cell.className = classes(
    "cell", `heat-${part === null ? "unknown" : Math.min(4, Math.ceil(part * 4))}`, gpu.reason && "cell-bad", wrong && "cell-over",
    isWhole(gpu) && "cell-whole",
  );
  cell.style.setProperty("--part", `${Math.round(100 * Math.min(1, part ?? 0))}%`);
  setAttributes(cell, { "aria-label": cellSaying(node, gpu) });
}

function partUsed(node, gpu) {
  const all = gpu.memoryMiB || gpu.totalShares * (node.shareMiB ?? 0);
  return gpuUseKnown(node, gpu) && all ? gpu.usedMiB / all : null;
}
