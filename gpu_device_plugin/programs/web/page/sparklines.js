/** Draws figures over time: a line for each, with gaps where nothing was read, its newest value and the end of its scale. */

import { age } from "./amounts.js";
import { draw, make } from "./dom.js";
import { t } from "./words.js";

const [WIDTH, HEIGHT] = [240, 32];

/** A row with a line of values of which some are known. `most`: the end of the scale; `say` (value): the value in words; `mark`: a value with a line across. */
export function lineRow(label, series, { most, say, mark, stepS }) {
  const known = series.filter((value) => value !== null);
  const top = Math.max(most ?? 0, 1, ...known);
  const y = (value) => (HEIGHT - 1.5 - (value / top) * (HEIGHT - 3)).toFixed(1);
  const now = series.at(-1) ?? null;
  const gapS = (series.length - known.length) * stepS;
  const words = t("spark", { what: label, now: now === null ? t("unknown") : say(now), low: say(Math.min(...known)), high: say(Math.max(...known)), most: say(top) });
  const picture = svg([words, gapS >= 60 && t("spark_gap", { age: age(gapS) })].filter(Boolean).join(t("list_comma")));
  for (const [begin, values] of runs(series, (value) => value !== null)) {
    const points = values.map((value, n) => `${x(begin + n, series)},${y(value)}`);
    picture.append(draw("path", { class: "spark-area", d: `M${x(begin, series)},${HEIGHT}L${points.join("L")}L${x(begin + values.length - 1, series)},${HEIGHT}Z` }));
    // A single value is a short line.
    picture.append(draw("path", { class: "spark-line", d: `M${points.join("L")}${values.length === 1 ? "m-2,0h4" : ""}` }));
  }
  if (mark && mark < top) picture.append(draw("path", { class: "spark-mark", d: `M0,${y(mark)}H${WIDTH}` }));
  return row(label, picture, now === null ? "–" : say(now), t("of_total", { total: say(top) }));
}

/** A row with a strip that is filled while a value is not 0. `words`: what the strip says. */
export function stripRow(label, series, words) {
  const picture = svg(`${label}: ${words}`, "spark-strip");
  for (const [begin, values] of runs(series, (value) => value !== null)) {
    picture.append(draw("rect", { class: "strip-known", x: x(begin, series), y: 0, width: share(values.length, series), height: HEIGHT }));
  }
  for (const [begin, values] of runs(series, Boolean)) {
    picture.append(draw("rect", { class: "strip-on", x: x(begin, series), y: 0, width: share(values.length, series), height: HEIGHT }));
  }
  return row(label, picture, "", words);
}

/** The row below others: from when to when they are. */
export function timeRow(size, stepS, end) {
  const [from, to] = [make("span", { text: `−${age(size * stepS)}` }), make("span", { text: end })];
  return make("div", { class: "spark-row spark-time", "aria-hidden": "true" }, make("span"), make("span", { class: "spark-ends" }, from, to), make("span"));
}

function row(label, picture, value, rest) {
  return make("div", { class: "spark-row" },
    make("span", { class: "spark-label", text: label }), picture,
    make("span", { class: "spark-value" }, value && make("b", { text: value }), make("span", { class: "quiet", text: rest })));
}

function svg(words, look = "") {
  return draw("svg", { class: `spark ${look}`.trim(), viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": words });
}

/** Where a value is drawn: the first at the beginning, the newest at the end. */
function x(n, series) {
  return ((Math.max(n, 2 - series.length) * WIDTH) / Math.max(1, series.length - 1)).toFixed(1);
}

function share(n, series) {
  return ((n * WIDTH) / Math.max(1, series.length - 1)).toFixed(1);
}

/** The runs of values that hold, each with the place of its first. */
function runs(series, holds) {
  const found = [];
  series.forEach((value, n) => {
    if (!holds(value)) return;
    if (n && holds(series[n - 1])) found.at(-1)[1].push(value);
    else found.push([n, [value]]);
  });
  return found;
}
