/** Writes the page by templates: the only module that puts strangers' text on the page, always as text. */

import { Directive, directive } from "./vendor/lit-html/directive.js";
import { repeat } from "./vendor/lit-html/directives/repeat.js";
import { noChange, nothing, render, html as template, svg as drawing } from "./vendor/lit-html/lit-html.js";

// Controls, invisible characters and those that turn the direction of writing round would let a name pose as another.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]/g;

/** Returns a text in which every character is seen. */
export function plain(value) {
  return String(value).replace(UNSEEN, (unseen) => `\\u${unseen.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** What a template gets of a value: a text of which every character is seen; nothing of null, undefined and false. */
function seen(value) {
  if (typeof value === "string") return plain(value);
  if (value === null || value === undefined || value === false) return nothing;
  return Array.isArray(value) ? value.map(seen) : value;
}

const tight = new WeakMap();

/** The strings of a template without the line breaks between its elements: in a thousand cards each would be a text. */
function packed(strings) {
  if (!tight.has(strings)) {
    const made = strings.map((each) => each.replace(/>\s*\n\s*(?=<|$)/g, ">").replace(/^\s*\n\s*(?=<)/, ""));
    tight.set(strings, Object.assign(made, { raw: made })); // as the library knows strings of templates
  }
  return tight.get(strings);
}

/**
 * The tag of a template. An attribute whose only value is null, undefined or false is not there. A style is set as a
 * property, `.style`: the page's policy forbids the attribute. A text that is all of an element costs least as `.textContent`.
 */
export function html(strings, ...values) {
  return template(packed(strings), ...values.map(seen));
}

/** The tag of a part of a drawing, in the same way. */
export function svg(strings, ...values) {
  return drawing(strings, ...values.map(seen));
}

/** The attribute `class`. Falsy names are left out. */
export function classes(...names) {
  return names.filter(Boolean).join(" ");
}

/** Has an element of a template written by hand: `write` (element). Its texts then go through `plain`, as below. */
export const byHand = directive(class extends Directive {
  update({ element }, [write]) {
    write(element);
    return noChange;
  }
});

/** Sets the text of an element that is written by hand, if it is another. */
export function setText(element, value) {
  const text = plain(value);
  if (element.textContent !== text) element.textContent = text;
}

/** Sets its attributes, if they are others ({name: value}); empty ones are not there. */
export function setAttributes(element, values) {
  for (const [name, value] of Object.entries(values)) {
    if (!value) element.removeAttribute(name);
    else if (element.getAttribute(name) !== plain(value)) element.setAttribute(name, plain(value));
  }
}

/** Items by their keys, in order. Keys that come twice are told apart by their order. */
function byKey(items, keyOf) {
  const found = new Map();
  for (const item of items) {
    const plainKey = keyOf(item);
    let key = plainKey;
    for (let n = 2; found.has(key); n += 1) key = `${plainKey}#${n}`;
    found.set(key, item);
  }
  return found;
}

/** A list in a template: what is shown of an item (`show`) stays where its key is known, so that it keeps the focus. */
export function keyed(items, keyOf, show) {
  return repeat(byKey(items, keyOf), ([key]) => key, ([, item]) => seen(show(item)));
}

const filled = new WeakSet();

/** Shows a text, a template or a list of them in an element, instead of what index.html has there. */
export function show(element, content) {
  if (!filled.has(element)) {
    filled.add(element);
    element.replaceChildren();
    delete element.dataset.t; // its text is no longer that word
  }
  render(seen(content), element);
}

const roots = new WeakMap();

/** Makes the element of a template that has one element; `rewrite` writes it again, wherever it stands then. */
export function made(content) {
  const root = document.createDocumentFragment();
  render(content, root);
  const element = root.firstElementChild;
  roots.set(element, root);
  return element;
}

export function rewrite(element, content) {
  render(content, roots.get(element));
}

const shown = new WeakMap();

/**
 * Makes the children of `parent` those of `items`, as a generator which yields after each child. It may be left before its
 * end: the next one goes on. An element is kept where the key is known, so that focus and scrolling stay.
 *
 * @param keyOf the key of an item; keys that come twice are told apart by their order
 * @param write (item, element) returns the template of an item, null if `element` shows it as it is; undefined: a new one
 * @param done (element, isNew): an element was written
 */
export function* reconciling(parent, items, keyOf, write, done = () => {}) {
  const known = shown.get(parent) ?? new Map();
  shown.set(parent, known);
  const wanted = byKey(items, keyOf);
  // Those that are gone go first. Then none of the others has to move, and so none loses the focus.
  for (const [key, element] of known) {
    if (wanted.has(key)) continue;
    known.delete(key);
    element.remove();
    yield;
  }
  let place = parent.firstElementChild;
  for (const [key, item] of wanted) {
    const before = known.get(key);
    const content = write(item, before);
    // Written before it is on the page: a new one costs one change of the page then, whatever is in it.
    const element = before ?? made(content);
    if (before && content) rewrite(element, content);
    if (content) done(element, !before);
    known.set(key, element);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    yield;
  }
}
