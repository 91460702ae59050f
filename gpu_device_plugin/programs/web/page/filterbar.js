/** Shows the filters and tells what a person chooses there. */

import { html, plain, show } from "./dom.js";
import { t } from "./words.js";

const MOST_HINTS = 300;

/**
 * Listens to the filters.
 *
 * @param changed ({name: value}, {typing}): what a person chose; `typing`: more of the same may follow
 */
export function listenToFilters(form, changed) {
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    const { name, type } = event.target;
    const value = type === "checkbox" && !event.target.checked ? "" : event.target.value;
    changed({ [name]: value }, { typing: type === "search" || type === "text" });
  });
  form.querySelector("#clear").addEventListener("click", () => {
    changed({ ns: "", node: "", model: "", q: "", trouble: "" }, { typing: false });
    form.elements.q.focus();
  });
}

/** Shows what the address asks for, and what there is to choose from: sorted lists of names. `typing`: somebody types. */
export function showFilters(form, asked, { namespaces, models, nodes }, { typing = false } = {}) {
  choices(form.elements.ns, namespaces, asked.ns);
  choices(form.elements.model, models, asked.model);
  show(form.querySelector("datalist"), nodes.slice(0, MOST_HINTS).map((name) => html`<option value=${name}></option>`));
  for (const name of ["node", "q"]) if (!typing && form.elements[name].value !== asked[name]) form.elements[name].value = asked[name];
  // What does nothing now keeps its place, so that nothing moves when it does.
  form.querySelector("#clear").disabled = !isFiltered(asked);
  form.querySelector("#hour").disabled = !asked.ns;
  form.elements.trouble.checked = Boolean(asked.trouble);
  form.elements.sort.value = asked.sort;
  form.querySelector("#by").disabled = asked.view !== "map";
  for (const name of ["view", "by"]) for (const radio of form.elements[name]) radio.checked = radio.value === asked[name];
}

/** Whether something is left out. */
export function isFiltered({ ns, node, model, q, trouble }) {
  return Boolean(ns || node || model || q || trouble);
}

function choices(select, names, current) {
  // What the address asks for can be chosen even where nothing has that name now.
  const all = ["", ...(current && !names.includes(current) ? [current] : []), ...names];
  const options = all.map((name) => new Option(plain(name || t("all")), name));
  // Only if there are others: a list that is open would close.
  if (options.length !== select.length || options.some((option, n) => !option.isEqualNode(select[n]))) select.replaceChildren(...options);
  if (select.value !== current) select.value = current;
}
