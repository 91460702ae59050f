/** Shows the name of a part or a cell, or what a badge means, beside it while the pointer rests on it, or the keyboard's focus. */

import { html, made, show as put } from "./dom.js";

const NAMED = ".part, .cell, [data-tip]";
// What may be cut off, and is shown whole then.
const CUT = ".where, .wait-why, .wait-room, #problems .note, .node-name, .node-models, .tile-name, .pod-name, .key-name, .wait-age, .sum-detail, .gpu-i";
const isCut = (element) => element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight + 1;

function toTell(target) {
  const named = target.closest?.(NAMED);
  if (named) return [named, named.dataset.tip ?? named.getAttribute("aria-label")];
  const cut = target.closest?.(CUT) ?? target.querySelector?.(":scope > .key-name"); // the focus is on the button around it
  return cut && isCut(cut) ? [cut, cut.textContent] : [];
}

/** Begins to show names within `root`. */
export function showTips(root) {
  const tip = made(html`<div class="tip" aria-hidden="true" hidden></div>`);
  document.body.append(tip);
  let named = null;
  const hide = () => {
    tip.hidden = true;
  };
  const place = () => {
    const at = named.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const x = Math.max(8, Math.min(at.left + at.width / 2 - own.width / 2, document.documentElement.clientWidth - own.width - 8));
    const above = at.top - own.height - 8;
    tip.style.left = `${x}px`;
    tip.style.top = `${above > 8 ? above : at.bottom + 8}px`;
  };
  const show = (event) => {
    const [element, text] = toTell(event.target);
    hide();
    if (!text) return;
    named = element;
    put(tip, text);
    tip.hidden = false;
    place();
  };
  root.addEventListener("pointerover", show);
  root.addEventListener("pointerleave", hide);
  root.addEventListener("focusin", (event) => (event.target.matches(":focus-visible") ? show(event) : hide()));
  root.addEventListener("focusout", hide);
  // The focus scrolls what it reaches into the window, and takes the name along.
  addEventListener("scroll", () => (tip.hidden ? null : named.closest(":focus-visible") ? place() : hide()), { passive: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
}
