/** Keeps what the page shows in its address, so that it can be sent to somebody and gone back to. */

const NAMES = ["ns", "node", "model", "q", "trouble", "sort", "view", "by", "pod", "panel", "lang"];

/** What the address asks for; "" for what it does not name. */
export function read() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));
}

/** Changes the address. `replace`: as part of the last change, so that going back goes behind both. */
export function write(asked, { replace = false } = {}) {
  const query = new URLSearchParams();
  for (const name of NAMES) if (asked[name]) query.set(name, asked[name]);
  // Slashes are common in it and harmless there.
  const search = query.toString().replaceAll("%2F", "/");
  const url = `${location.pathname}${search ? `?${search}` : ""}`;
  if (replace) history.replaceState(null, "", url);
  else if (url !== `${location.pathname}${location.search}`) history.pushState(null, "", url);
}
