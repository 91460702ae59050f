/** Remembers how full nodes have been since the page was opened, for the lines on the map. */

const EVERY_MS = 10_000;
// As much as half an hour.
const MOST = 180;
// Tiles of more nodes have no room for lines.
const MOST_NODES = 300;

/** The part of a node's memory that is given, or used; null: unknown. */
export function partOf({ sums = {}, use }, by) {
  const amount = by === "used" ? use?.at && sums.usedMiB : sums.givenMiB ?? 0;
  return sums.totalMiB && typeof amount === "number" ? Math.min(1, amount / sums.totalMiB) : null;
}

/** The parts of each node over time. */
export class Trends {
  #of = new Map();
  #nextMs = 0;

  /** Remembers the nodes as they are now, unless that was done a moment ago; returns whether it did. */
  take(nodes, nowMs = performance.now()) {
    if (nowMs < this.#nextMs || nodes.length > MOST_NODES) return false;
    this.#nextMs = nowMs + EVERY_MS;
    const before = this.#of;
    this.#of = new Map(nodes.map((node) => [node.name, before.get(node.name) ?? []]));
    for (const node of nodes) {
      const line = this.#of.get(node.name);
      line.push({ given: partOf(node, "given"), used: partOf(node, "used") });
      if (line.length > MOST) line.shift();
    }
    return true;
  }

  /** The line of a node in a field of 100 by 20, the newest value at its end, with gaps where nothing was known. */
  path(name, by) {
    const values = (this.#of.get(name) ?? []).map((each) => each[by]);
    const step = 100 / Math.max(5, values.length - 1);
    const points = values.map((value, n) => (value === null ? null : `${(100 - (values.length - 1 - n) * step).toFixed(1)},${(19 - 18 * value).toFixed(1)}`));
    return points.map((point, n) => point && `${n && points[n - 1] ? "L" : "M"}${point}${n && points[n - 1] ? "" : "h-0.1"}`).filter(Boolean).join("");
  }
}
