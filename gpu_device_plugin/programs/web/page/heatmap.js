/** Shows every GPU of many nodes as a cell. */

import { percent } from "./amounts.js";
import { gpusOf, gpuUseKnown, isWhole, partsOf, takesPods } from "./cluster.js";
import { byHand, classes, html, made, setAttributes } from "./dom.js";
import { cellSaying, closedSaying } from "./sayings.js";
import { partOf } from "./trends.js";

const [NARROWEST, LOWEST, HIGHEST, ROOMY, GAP] = [84, 37, 190, 48, 10];
// Tiles of this proportion are read best.
const WIDE = 1.7;

/** The size of tiles by which they fill the window. */
export class TileFit {
  /** Whether there is room for more than cells. */
  roomy = false;
  #key = "";

  /** Chooses columns and height, anew for another number of tiles or another window. */
  fit(map, tiles) {
    const key = [tiles, innerWidth, innerHeight].join(" ");
    if (key === this.#key || !tiles) return;
    map.hidden = false;
    this.#key = key;
    const width = map.clientWidth - 28;
    const height = Math.max(innerHeight / 2, innerHeight - map.offsetTop - 56);
    const most = Math.max(1, Math.floor((width + GAP) / (NARROWEST + GAP)));
    const columns = Math.min(most, Math.max(1, Math.round(Math.sqrt((tiles * width) / (height * WIDE)))));
    const tile = Math.max(LOWEST, Math.min(HIGHEST, Math.floor(height / Math.ceil(tiles / columns)) - GAP));
    map.style.setProperty("--columns", columns);
    map.style.setProperty("--tile", `${tile}px`);
    this.roomy = tile >= ROOMY;
  }
}

/** The tile of a node. `by`: what the height of a cell shows, "given" or "used"; `trend`: its line over time, if there is room for it. */
export function tileOf(node, by, trend = null) {
  const state = closedSaying(node);
  const look = classes("tile", !takesPods(node) && "tile-closed", !node.ready && "tile-down", gpusOf(node).some((gpu) => gpu.reason) && "tile-bad");
  const part = trend === null ? null : partOf(node, by);
  return html`<div class=${look} role="group" data-node=${node.name} aria-label=${state ? `${node.name} (${state})` : node.name}>
      <span class="tile-head" aria-hidden="true"><span class="tile-name">${node.name}</span>${part !== null && html`<span class="tile-sum">${percent(Math.round(100 * part) / 100)}</span>`}</span>
      <span class="cells" role="presentation" ${byHand((cells) => writeCells(cells, node, by))}></span>
      ${trend !== null && html`<svg class="trend" viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true"><path d=${trend}></path></svg>`}
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
