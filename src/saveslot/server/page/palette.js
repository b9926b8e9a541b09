// @ts-check
/** Find or do: sessions by id, user or text, places, and what can be done here. */
import { get } from "./api.js";
import { refocus } from "./dialog.js";
import { plain, short } from "./format.js";
import { shape } from "./icons.js";
import { go, layOver, sessionUrl } from "./places.js";
import { each, html, signal } from "./view.js";

/** @typedef {{group: string, mark: unknown, name: string, note: string, run: () => void}} Choice */

const isOpen = signal(false);
const text = signal("");
const chosen = signal(0);
const sessions = signal(/** @type {any[]} */ ([]));
let timer = 0;
/** What had the focus before. @type {Element | null} */
let before = null;

let uncovered = () => {};

export function openPalette() {
  if (isOpen.peek()) return;
  before = document.activeElement;
  uncovered = layOver(close);
  text.value = "";
  chosen.value = 0;
  isOpen.value = true;
  search();
}

function close() {
  uncovered();
  isOpen.value = false;
  refocus(before);
}

function search() {
  clearTimeout(timer);
  timer = setTimeout(async () => {
    const wanted = text.peek();
    const { items } = await get("/sessions", { text: wanted || undefined, sort: wanted ? undefined : "changed", limit: 6 }).catch(() => ({ items: [] }));
    if (wanted === text.peek()) sessions.value = items;
  }, 80);
}

/** @param {{name: string, note: string, run: () => void}[]} commands @returns {Choice[]} */
function choices(commands) {
  const words = text.value.toLowerCase();
  const found = sessions.value.map((row) => ({
    group: "Sessions",
    mark: shape(row.orphaned ? "orphaned" : row.state),
    name: plain(row.session_id),
    note: `${plain(row.agent_type)} · ${row.orphaned ? "orphaned" : row.state} · ${short(Date.now() / 1000 - Date.parse(row.last_heartbeat) / 1000)} ago`,
    run: () => go(sessionUrl(row.session_id)),
  }));
  const doing = commands.filter(({ name }) => name.toLowerCase().includes(words)).slice(0, words ? 8 : 6);
  return [...found, ...doing.map((command) => ({ group: "Do", mark: null, ...command }))];
}

/** @param {{name: string, note: string, run: () => void}[]} commands */
export function paletteView(commands) {
  if (!isOpen.value) return null;
  const all = choices(commands);
  const at = Math.min(chosen.value, Math.max(0, all.length - 1));
  /** @param {Choice} choice */
  const run = (choice) => {
    close();
    queueMicrotask(choice.run);
  };
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      chosen.value = (at + step + all.length) % Math.max(1, all.length);
    } else if (event.key === "Enter" && all[at]) {
      event.preventDefault();
      run(all[at]);
    }
  };
  return html`<dialog class="palette" aria-label="Find or do" ref=${(/** @type {HTMLDialogElement} */ d) => d.showModal()} @cancel=${(/** @type {Event} */ e) => { e.preventDefault(); close(); }} @click=${(/** @type {Event} */ e) => e.target === e.currentTarget && close()} @keydown=${key}>
    <input type="text" role="combobox" aria-expanded="true" aria-controls="choices" aria-activedescendant=${`choice-${at}`} aria-label="Find or do" placeholder="a session, a place, or what to do" autofocus .value=${text.value}
      @input=${(/** @type {Event} */ e) => { text.value = /** @type {HTMLInputElement} */ (e.target).value; chosen.value = 0; search(); }}>
    <div id="choices" role="listbox" aria-label="Choices">${each(all, (choice, i) => `${i} ${choice.name}`, (choice, i) => html`${i === 0 || all[i - 1].group !== choice.group ? html`<div class="choice-group" role="presentation">${choice.group}</div>` : null}
      <div class="choice" id=${`choice-${i}`} role="option" aria-selected=${String(i === at)} @click=${() => run(choice)}>${choice.mark}<span><b>${choice.name}</b> <span class="soft">${choice.note}</span></span></div>`)}
      ${all.length ? null : html`<div class="choice-group" role="option" aria-selected="false">Nothing found.</div>`}</div>
    <footer><kbd>↑</kbd> <kbd>↓</kbd> choose <kbd>Enter</kbd> go <span class="push"></span><kbd>Esc</kbd></footer></dialog>`;
}
