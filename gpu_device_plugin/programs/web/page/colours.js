/** Gives every namespace its look: the same on every page, whoever looks and whatever else is there. */

const COLOURS = 10;
const PATTERNS = 4;

const known = new Map();

/** The classes of a namespace: a colour and a pattern, so that colour is never all that tells two apart. */
export function lookOf(namespace) {
  if (!namespace) return "look-none";
  if (!known.has(namespace)) {
    // FNV-1a, from a beginning by which usual names get different colours, and with a last mix: names that differ by their last
    // character only are to look different.
    let hash = 0x811ca95b;
    for (const byte of new TextEncoder().encode(namespace)) hash = Math.imul(hash ^ byte, 0x01000193);
    hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d);
    hash = (hash ^ (hash >>> 13)) >>> 0;
    known.set(namespace, `look-c${hash % COLOURS} p${Math.floor(hash / COLOURS) % PATTERNS}`);
  }
  return known.get(namespace);
}
