// @ts-check
/** Views of the list that this browser keeps. */
import { plain } from "./format.js";
import { print } from "./query.js";
import { html, signal } from "./view.js";

/** @typedef {import("./query.js").Filters} Filters */
const KEY = "saveslot.views";
const BUILT_IN = /** @type {{name: string, filters: Filters}[]} */ ([{ name: "All", filters: {} }, { name: "Failed", filters: { state: ["failed"] } }, { name: "Orphaned", filters: { state: ["orphaned"] } }]);

const own = signal(/** @type {typeof BUILT_IN} */ (JSON.parse(localStorage.getItem(KEY) ?? "[]")));
const naming = signal(false);

/** @param {typeof BUILT_IN} views */
function keep(views) {
  own.value = views;
  localStorage.setItem(KEY, JSON.stringify(views));
}

/** @param {Filters} current @param {(filters: Filters) => void} choose */
export function savedViews(current, choose) {
  const here = print(current);
  const known = [...BUILT_IN, ...own.value].some(({ filters }) => print(filters) === here);
  /** @param {SubmitEvent} event */
  const save = (event) => {
    event.preventDefault();
    const field = /** @type {HTMLInputElement} */ (/** @type {HTMLFormElement} */ (event.target).elements.namedItem("name"));
    if (field.value.trim()) keep([...own.peek().filter(({ name }) => name !== field.value.trim()), { name: field.value.trim(), filters: current }]);
    naming.value = false;
  };
  return html`<nav class="saved" aria-label="Views">${BUILT_IN.map(({ name, filters }) => html`<button class="quiet" aria-pressed=${String(print(filters) === here)} @click=${() => choose(filters)}>${name}</button>`)}
    ${own.value.map((view) => html`<span class="own-view"><button class="quiet" aria-pressed=${String(print(view.filters) === here)} @click=${() => choose(view.filters)}>${plain(view.name)}</button><button class="quiet drop" aria-label=${`Remove view ${plain(view.name)}`} @click=${() => keep(own.peek().filter((other) => other !== view))}>✕</button></span>`)}
    ${naming.value ? html`<form class="naming" @submit=${save}><input name="name" aria-label="Name of this view" maxlength="40" required autofocus><button>Save</button></form>` : known ? null : html`<button class="quiet" @click=${() => (naming.value = true)}>+ save this view</button>`}</nav>`;
}
