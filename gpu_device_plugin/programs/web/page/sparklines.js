/** Draws figures over time: a line for each, with gaps where nothing was read, its newest value and the end of its scale. */

import { age } from "./amounts.js";
import { html, svg } from "./dom.js";
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
  const gap = gapS >= 60 && t("spark_gap", { age: age(gapS) });
  const lines = runs(series, (value) => value !== null).map(([begin, values]) => {
    const points = values.map((value, n) => `${x(begin + n, series)},${y(value)}`).join("L");
    const area = `M${x(begin, series)},${HEIGHT}L${points}L${x(begin + values.length - 1, series)},${HEIGHT}Z`;
    // A single value is a short line.
    return svg`<path class="spark-area" d=${area}></path><path class="spark-line" d=${`M${points}${values.length === 1 ? "m-2,0h4" : ""}`}></path>`;
  });
  const across = mark && mark < top ? svg`<path class="spark-mark" d=${`M0,${y(mark)}H${WIDTH}`}></path>` : null;
  return row(label, picture([words, gap].filter(Boolean).join(t("list_comma")), [lines, across]), now === null ? "–" : say(now), t("of_total", { total: say(top) }));
}

/** A row with a strip that is filled while a value is not 0. `words`: what the strip says. */
export function stripRow(label, series, words) {
  const strips = (look, holds) => runs(series, holds).map(([begin, values]) => svg`<rect class=${look} x=${x(begin, series)} y="0" width=${share(values.length, series)} height=${HEIGHT}></rect>`);
  return row(label, picture(`${label}: ${words}`, [strips("strip-known", (value) => value !== null), strips("strip-on", Boolean)], "spark spark-strip"), null, words);
}

/** The row below others: from when to when they are. */
export function timeRow(size, stepS, end) {
  return html`<div class="spark-row spark-time" aria-hidden="true"><span></span><span class="spark-ends"><span>${`−${age(size * stepS)}`}</span><span>${end}</span></span><span></span></div>`;
}

function row(label, drawing, value, rest) {
  return html`<div class="spark-row"><span class="spark-label">${label}</span>${drawing}<span class="spark-value">${value && html`<b>${value}</b>`}<span class="quiet">${rest}</span></span></div>`;
}

function picture(words, content, look = "spark") {
  return html`<svg class=${look} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${words}>${content}</svg>`;
}

/** Where a value is drawn: the first at the beginning, the newest at the end. */
function x(n, series) {
  return share(Math.max(n, 2 - series.length), series);
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
