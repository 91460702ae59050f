/** Moves the focus by arrow keys among many things that are one stop of the Tab key. */

/** Moves the focus from one of `all` by an arrow key, Home or End. `beside` (step): what is below it, or above. */
function move(event, here, all, beside) {
  const at = all.indexOf(here);
  const to = {
    ArrowRight: () => all[at + 1], ArrowLeft: () => all[at - 1], Home: () => all[0], End: () => all.at(-1),
    ArrowDown: () => beside(1), ArrowUp: () => beside(-1),
  };
  if (event.altKey || event.ctrlKey || event.metaKey || !Object.hasOwn(to, event.key)) return;
  event.preventDefault();
  to[event.key]()?.focus();
}

/** Among the parts of a card's bars: left and right on a bar, up and down between bars. */
export function moveOnBars(event) {
  const part = event.target.closest?.(".part");
  if (part) move(event, part, [...part.closest(".bar").querySelectorAll(".part")], (step) => beside(part, step));
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
  if (!cell) return;
  const n = [...cell.parentElement.children].indexOf(cell);
  move(event, cell, [...event.currentTarget.querySelectorAll(".cell")], (step) => {
    const other = tileBeside(cell.closest(".tile"), step > 0);
    return other && (other.querySelectorAll(".cell")[n] ?? other.querySelector(".cell"));
  });
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
