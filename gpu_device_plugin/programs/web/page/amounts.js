/** Writes amounts of memory, ages and percentages for people. */

import { number, t } from "./words.js";

const GIB = 1024;

/** Memory, as people say it. `mib`: in MiB. */
export function memory(mib) {
  if (mib < GIB && mib !== 0) return `${number(mib)} MiB`;
  if (mib >= GIB * GIB) return `${number(mib / GIB / GIB, 1)} TiB`;
  const gib = mib / GIB;
  return `${number(gib, gib < 100 ? 1 : 0)} GiB`;
}

/** Shares of a node as memory; as a number of shares where their size is not known. */
export function amount(node, shares) {
  return node.shareMiB ? memory(shares * node.shareMiB) : t("shares", { n: shares });
}

export function percent(part) {
  return `${number(100 * part)} %`;
}

/** An age in its largest unit. `seconds`: those of the future count as none. */
export function age(seconds) {
  const s = Math.max(0, seconds);
  if (s < 100) return t("age_s", { n: Math.floor(s) });
  if (s < 100 * 60) return t("age_min", { n: Math.floor(s / 60) });
  if (s < 48 * 3600) return t("age_h", { n: Math.floor(s / 3600) });
  return t("age_d", { n: Math.floor(s / 86400) });
}

let ahead = 0;

/** Takes the server's clock, so that ages are right where this machine's clock is wrong. */
export function setClock(now) {
  const server = Date.parse(now);
  if (!Number.isNaN(server)) ahead = server - Date.now();
}

/** The seconds since a time in RFC 3339, by the server's clock; NaN where it is none. */
export function secondsSince(time) {
  return (Date.now() + ahead - Date.parse(time)) / 1000;
}

/** The age of a time in RFC 3339; as it stands where it is none. */
export function ageOf(time) {
  const seconds = secondsSince(time);
  return Number.isNaN(seconds) ? String(time) : age(seconds);
}
