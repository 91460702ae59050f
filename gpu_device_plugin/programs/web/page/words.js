/** The page's words in both languages. The server's messages bring their English words with them. */

export const LANGUAGES = ["en", "zh"];
const LOCALES = { en: "en-GB", zh: "zh-CN" };
/** Of each language its words by key, from the file of its name. `{name}` is filled in; `one|more` is chosen by `n`. `messages` has those of the server by code. */
const WORDS = Object.fromEntries(await Promise.all(LANGUAGES.map(async (each) => [each, await (await fetch(`${each}.json`)).json()])));
let language = "en";
let numbers = new Map();

/** Chooses the language: the one asked for, or the first that the browser prefers and the page has. */
export function speak(asked) {
  const preferred = [asked, ...navigator.languages].map((tag) => String(tag ?? "").toLowerCase().split("-")[0]);
  language = preferred.find((tag) => LANGUAGES.includes(tag)) ?? "en";
  numbers = new Map();
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
}

export function spoken() {
  return language;
}

/** Returns a text in the language that is spoken, filled in. */
export function t(key, values = {}) {
  const forms = WORDS[language][key].split("|");
  const form = forms.length > 1 && values.n !== 1 ? forms[1] : forms[0];
  return form.replace(/\{(\w+)\}/g, (_, name) => (typeof values[name] === "number" ? number(values[name]) : values[name]));
}

/** Whether the page has a text of its own. */
export function knows(key) {
  return Object.hasOwn(WORDS[language], key);
}

/** Returns a message of the server in the language that is spoken; what is none, such as a name in it, is said as it is. */
export function say(message) {
  const form = WORDS[language].messages?.[message?.code];
  if (form === undefined) return String(message?.text ?? message ?? "");
  const part = (name, between) => [message.parameters[name] ?? ""].flat().map(say).join(between || "；");
  // What stands in brackets is left out where a parameter in it is empty. `{names:、}` is a list with that between.
  const kept = form.replace(/\[([^\]]*)\]/g, (_, some) => ([...some.matchAll(/\{(\w+)/g)].every(([, name]) => part(name)) ? some : ""));
  return kept.replace(/\{(\w+):?([^}]*)\}/g, (_, name, between) => part(name, between));
}

export function number(value, digits = 0) {
  if (Number.isInteger(value) && value >= 0 && value < 1000) return String(value); // most are, and all languages write them so
  if (!numbers.has(digits)) {
    numbers.set(digits, new Intl.NumberFormat(LOCALES[language], { maximumFractionDigits: digits }));
  }
  return numbers.get(digits).format(value);
}

/** Writes the texts of a part of the page that is in index.html: `data-t` and `data-t-ATTRIBUTE`. */
export function translate(root) {
  for (const element of root.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of root.querySelectorAll("[data-t-label]")) element.setAttribute("aria-label", t(element.dataset.tLabel));
  for (const element of root.querySelectorAll("[data-t-hint]")) element.setAttribute("placeholder", t(element.dataset.tHint));
}
