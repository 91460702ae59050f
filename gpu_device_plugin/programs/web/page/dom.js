/** Makes and changes elements: the only module that puts strangers' text on the page, always as text. */

// Controls, invisible characters and those that turn the direction of writing round would let a name pose as another.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]/g;

/** Returns a text in which every character is seen. */
export function plain(value) {
  return String(value).replace(UNSEEN, (unseen) => `\\u${unseen.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Makes an element. `props`: `class`, `text`, `on` ({event: handler}); all others are attributes. */
export function make(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** Makes an element of a drawing (SVG), in the same way. */
export function draw(tag, props = {}, ...children) {
  // The namespace is that of the drawing in index.html: an address in a script would look like one that is fetched.
  return filled(document.createElementNS(document.querySelector("svg").namespaceURI, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "text") element.textContent = plain(value);
    else if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else setAttribute(element, name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Sets a text, if it is another: an unchanged page costs nothing. */
export function setText(element, value) {
  const text = plain(value);
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute, if it is another; none for undefined, null and false. */
export function setAttribute(element, name, value) {
  if (value === undefined || value === null || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : name.startsWith("aria-") || name === "title" ? plain(value) : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Sets the class, if it is another. Falsy names are left out. */
export function setClass(element, ...names) {
  const text = names.filter(Boolean).join(" ");
  if (element.className !== text) element.className = text;
}

/** Sets a property of the style, if it is another. */
export function setStyle(element, name, value) {
  if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

const keyed = new WeakMap();

/**
 * Makes the children of `parent` those of `items`: kept where the key is known, so that focus and scrolling stay.
 *
 * @param keyOf the key of an item; keys that come twice are told apart by their order
 * @param create makes the element of a new item
 * @param update (element, item), for new and known ones
 */
export function reconcile(parent, items, keyOf, create, update) {
  for (const _ of reconciling(parent, items, keyOf, create, update)) void _;
}

/** The same as a generator, which yields after each child. It may be left before its end: the next one goes on. */
export function* reconciling(parent, items, keyOf, create, update) {
  const known = keyed.get(parent) ?? new Map();
  keyed.set(parent, known);
  const wanted = new Map();
  for (const item of items) {
    const plainKey = keyOf(item);
    let key = plainKey;
    for (let n = 2; wanted.has(key); n += 1) key = `${plainKey}#${n}`;
    wanted.set(key, item);
  }
  // Those that are gone go first. Then none of the others has to move, and so none loses the focus.
  for (const [key, element] of known) {
    if (wanted.has(key)) continue;
    known.delete(key);
    element.remove();
    yield;
  }
  let place = parent.firstElementChild;
  for (const [key, item] of wanted) {
    const element = known.get(key) ?? create(item);
    known.set(key, element);
    // Written before it is on the page: a new one costs one change of the page then, whatever is in it.
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    yield;
  }
}
