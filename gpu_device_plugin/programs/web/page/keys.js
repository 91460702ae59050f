/** Moves the focus by arrow keys among many things that are one stop of the Tab key. */

/** Among the parts of a card's bars: left and right on a bar, up and down between bars. */
export function moveOnBars(event) {
  const part = event.target.closest?.(".part");
  if (!part || event.altKey || event.ctrlKey || event.metaKey) return;
  const bar = [...part.closest(".bar").querySelectorAll(".part")];
  const here = bar.indexOf(part);
  let to;
  if (event.key === "ArrowRight") to = bar[here + 1];
  else if (event.key === "ArrowLeft") to = bar[here - 1];
  else if (event.key === "Home") [to] = bar;
  else if (event.key === "End") to = bar.at(-1);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") to = beside(part, event.key === "ArrowDown" ? 1 : -1);
  else return;
  event.preventDefault();
  to?.focus();
}

function beside(part, step) {
  const rows = [...part.closest(".gpus").children];
  for (let n = rows.indexOf(part.closest(".gpu")) + step; rows[n]; n += step) {
    const parts = [...rows[n].querySelectorAll(".part")];
    if (parts.length) return nearest(parts, middle(part));
  }
  return undefined;
}

function middle(element) {
  const box = element.getBoundingClientRect();
  return box.left + box.width / 2;
}

function nearest(elements, x) {
  return elements.reduce((best, each) => (Math.abs(middle(each) - x) < Math.abs(middle(best) - x) ? each : best));
}

/** Among the cells of the map. */
export function moveOnMap(event) {
  const cell = event.target.closest?.(".cell");
  if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
  const tile = cell.closest(".tile");
  const n = [...cell.parentElement.children].indexOf(cell);
  let to;
  if (event.key === "ArrowRight") to = cell.nextElementSibling ?? tile.nextElementSibling?.querySelector(".cell");
  else if (event.key === "ArrowLeft") to = cell.previousElementSibling ?? [...(tile.previousElementSibling?.querySelectorAll(".cell") ?? [])].at(-1);
  else if (event.key === "Home") to = tile.parentElement.querySelector(".cell");
  else if (event.key === "End") to = [...(tile.parentElement.lastElementChild?.querySelectorAll(".cell") ?? [])].at(-1);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const other = tileBeside(tile, event.key === "ArrowDown");
    to = other && (other.querySelectorAll(".cell")[n] ?? other.querySelector(".cell"));
  } else return;
  event.preventDefault();
  to?.focus();
}

function tileBeside(tile, down) {
  const next = (each) => (down ? each.nextElementSibling : each.previousElementSibling);
  let best = null;
  let top = null;
  for (let each = next(tile); each; each = next(each)) {
    if (each.offsetTop === tile.offsetTop) continue;
    top ??= each.offsetTop;
    if (each.offsetTop !== top) break;
    if (!best || Math.abs(each.offsetLeft - tile.offsetLeft) < Math.abs(best.offsetLeft - tile.offsetLeft)) best = each;
  }
  return best;
}

/** Keeps one of `selector` within `root` in the order of the Tab key: the first, or the one last focused (`moveStop`). */
export function oneStop(root, selector) {
  if (!root.querySelector(`${selector}[tabindex="0"]`)) root.querySelector(selector)?.setAttribute("tabindex", "0");
}

/** Handles `focusin`: of the `selector` within one `root`, the Tab key stops at the one that has the focus. */
export function moveStop({ target }, root, selector) {
  const stop = target.closest(selector);
  for (const each of stop ? stop.closest(root).querySelectorAll(`${selector}[tabindex="0"]`) : []) each.tabIndex = -1;
  if (stop) stop.tabIndex = 0;
}
