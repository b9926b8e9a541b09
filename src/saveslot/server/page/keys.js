// @ts-check
/** The keyboard: single keys where nothing is being typed, and sequences that begin with g. */
import { html } from "./view.js";

/** @typedef {{keys: string[], text: string, run: () => void, where?: string}} Shortcut */

/** @type {(() => Shortcut[])[]} */
const sources = [];
/** @param {() => Shortcut[]} source */
export const addShortcuts = (source) => void sources.push(source);

export const singleKeys = () => localStorage.getItem("saveslot.keys") !== "off";

// The screen's own keys come before those that work everywhere.
const all = () => [...sources].reverse().flatMap((source) => source());
let began = "";
let timer = 0;

document.addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  const typing = target.matches("input, textarea, select, [contenteditable]");
  const name = (event.ctrlKey || event.metaKey ? "Ctrl " : "") + (event.key === " " ? "space" : event.key);
  const single = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (event.altKey || (single && (name === "Escape" ? document.querySelector(".palette[open]") : typing || !singleKeys() || document.querySelector("dialog[open]")))) return;
  if (name === "Enter" && target.matches("button, a, summary")) return;
  const pressed = began ? `${began} ${name}` : name;
  began = "";
  const hit = all().find(({ keys }) => keys.includes(pressed));
  if (hit) {
    event.preventDefault();
    hit.run();
  } else if (name === "g") {
    began = "g";
    clearTimeout(timer);
    timer = setTimeout(() => (began = ""), 1200);
  }
});

const NAMES = /** @type {Record<string, string>} */ ({ ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc", "Ctrl k": "Ctrl K" });

/** The keys that work here, for `?`. */
export function keysView() {
  /** @type {Map<string, Shortcut[]>} */
  const groups = new Map();
  for (const shortcut of all()) groups.set(shortcut.where ?? "Everywhere", [...(groups.get(shortcut.where ?? "Everywhere") ?? []), shortcut]);
  return html`<div class="key-groups">${[...groups].map(([where, shortcuts]) => html`<section><h3>${where}</h3><dl>${shortcuts.map(({ keys, text }) => html`<div><dt>${keys.map((key) => html`<kbd>${NAMES[key] ?? key}</kbd> `)}</dt><dd>${text}</dd></div>`)}</dl></section>`)}</div>`;
}
