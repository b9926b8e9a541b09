// @ts-check
/** The namespace that is shown, and the way to another one. */
import { Failure, get, me, namespace } from "./api.js";
import { count, plain } from "./format.js";
import { effect, html, signal } from "./view.js";

/** @typedef {{name: string, sessions: number}} Namespace */

// Namespaces that can be chosen; others by the URL.
const MOST = 200;

const known = signal(/** @type {readonly Namespace[]} */ ([]));
effect(() => {
  if (me.value) load();
});

async function load() {
  try {
    known.value = (await get("/namespaces", { limit: MOST })).items;
  } catch (error) {
    if (!(error instanceof Failure)) throw error; // the name alone is shown then
  }
}

/** Those with sessions, and this one. Pure. @param {readonly Namespace[]} all @param {string} here @returns {readonly Namespace[]} */
export const choices = (all, here) => (all.some(({ name }) => name === here) ? all : [{ name: here, sessions: 0 }, ...all]);

/** The same screen in another namespace, which knows nothing of this one's sessions. Pure. @param {string} path @param {string} name */
export const urlIn = (path, name) => (/^\/(sessions|compare)/.test(path) ? "/sessions" : path) + (name === "default" ? "" : `?ns=${encodeURIComponent(name)}`);

/** Names of all that can be chosen but this one. */
export const otherNamespaces = () => known.value.map(({ name }) => name).filter((name) => name !== namespace());

export function namespaceView() {
  const all = choices(known.value, namespace());
  if (all.length < 2) return html`<b>${plain(namespace())}</b>`;
  const choose = (/** @type {Event} */ e) => location.assign(urlIn(location.pathname, /** @type {HTMLSelectElement} */ (e.target).value));
  return html`<select class="namespace" aria-label="Namespace" @change=${choose}>${all.map(({ name, sessions }) => html`<option value=${name} selected=${name === namespace()}>${plain(name)}${sessions ? `, ${count(sessions)}` : ""}</option>`)}</select>`;
}
