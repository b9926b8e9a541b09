// @ts-check
/** The page: a bar with the places, the screen of the place one is at, and what floats above both. */
import { me, signedOut } from "./api.js";
import { now } from "./clock.js";
import { ask, close, dialogView, question } from "./dialog.js";
import { clock, plain, span } from "./format.js";
import { brand, icon } from "./icons.js";
import { addShortcuts, keysView } from "./keys.js";
import { namespaceView, otherNamespaces, urlIn } from "./namespaces.js";
import { needing } from "./needing.js";
import { openPalette, paletteView } from "./palette.js";
import { go, place } from "./places.js";
import { identify, signInView } from "./signin.js";
import { connect, connected, gaps, lostAt } from "./stream.js";
import { toastView, undo } from "./toast.js";
import { effect, html, render, signal } from "./view.js";

/** @typedef {{title: string, view: () => unknown, shortcuts?: () => import("./keys.js").Shortcut[], dispose: () => void}} Screen */
/** @typedef {(id: string) => Screen} Open */
/** @typedef {{path: string, name: string, key: string, icon: string}} Destination */

/** @type {Destination[]} */
const PLACES = [
  { path: "/", name: "Now", key: "n", icon: "now" },
  { path: "/sessions", name: "Sessions", key: "s", icon: "sessions" },
  { path: "/storage", name: "Storage", key: "t", icon: "storage" },
  { path: "/analytics", name: "Analytics", key: "a", icon: "analytics" },
  { path: "/events", name: "Events", key: "e", icon: "events" },
];

/** Screens by path. A module comes when its screen is first opened, and the others once that one is there. @type {Record<string, () => Promise<Open>>} */
const SCREENS = {
  "/": () => import("./now.js").then((module) => module.nowScreen),
  "/sessions": () => import("./sessions.js").then((module) => module.sessionsScreen),
  "/session": () => import("./session.js").then((module) => module.sessionScreen),
  "/compare": () => import("./compare.js").then((module) => module.compareScreen),
  "/storage": () => import("./storage.js").then((module) => module.storageScreen),
  "/analytics": () => import("./analytics.js").then((module) => module.analyticsScreen),
  "/events": () => import("./events.js").then((module) => module.eventsScreen),
  "/settings": () => import("./settings.js").then((module) => module.settingsScreen),
};

/** Of the screens whose modules are loaded. @type {Map<string, Open>} */
const opens = new Map();
const screen = signal(/** @type {Screen | null} */ (null));
/** Why the module of this place's screen did not come. */
const unloaded = signal("");
let shownKey = "";
// Milliseconds after the first screen, when its own requests are under way.
const LATER = 1500;

/** Open the screen of the place; a place that differs in its parameters only keeps its screen. */
function enter() {
  const { path, id, query } = place.value;
  const key = `${path} ${id} ${query.get("ns") ?? ""} ${gaps.value}`;
  if (!me.value || key === shownKey) return;
  if (!SCREENS[path]) return go(PLACES[0].path);
  shownKey = key;
  unloaded.value = "";
  screen.peek()?.dispose();
  const open = opens.get(path);
  screen.value = open ? open(id) : null;
  if (!open) load(path).then((loaded) => shownKey === key && (screen.value = loaded(id)), (error) => shownKey === key && (unloaded.value = String(error)));
}

/** @param {string} path */
async function load(path) {
  const open = await SCREENS[path]();
  if (!opens.size) setTimeout(() => Object.keys(SCREENS).forEach((other) => load(other).catch(() => {})), LATER);
  opens.set(path, open);
  return open;
}

/** The server may have another version of the page by now, or not answer. */
const waiting = () => (unloaded.value
  ? html`<section class="panel pad missing"><h1>This screen could not be loaded</h1><p>The server may have a newer version of the page, or not answer. <span class="soft">${plain(unloaded.value)}</span></p><p><button @click=${() => location.reload()}>Reload the page</button></p></section>`
  : html`<div class="grey-bars" aria-hidden="true"><i></i><i></i><i></i></div>`);

const toggleTheme = () => {
  const { dataset } = document.documentElement;
  const dark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("saveslot.theme", dataset.theme);
};
const showKeys = () => ask({ title: "Keys", body: keysView });

addShortcuts(() => [
  { keys: ["Ctrl k"], text: "find or do", run: openPalette },
  ...PLACES.map(({ path, name, key }) => ({ keys: [`g ${key}`], text: name, run: () => go(path) })),
  { keys: ["t"], text: "theme", run: toggleTheme },
  { keys: ["u"], text: "undo", run: undo },
  { keys: ["?"], text: "these keys", run: showKeys },
  { keys: ["Escape"], text: "close, or back", run: () => (question.peek() ? close() : place.peek().path === "/session" && go("/sessions")) },
]);
addShortcuts(() => screen.peek()?.shortcuts?.() ?? []);

const commands = () => [
  ...PLACES.map(({ name, path }) => ({ name: `Go to ${name}`, note: path, run: () => go(path) })),
  { name: "Settings and tokens", note: "/settings", run: () => go("/settings") },
  ...(screen.peek()?.shortcuts?.() ?? []).map(({ text, keys, run }) => ({ name: text, note: keys[0], run })),
  ...otherNamespaces().map((name) => ({ name: `Go to namespace ${plain(name)}`, note: "", run: () => location.assign(urlIn(location.pathname, name)) })),
  { name: "Switch theme", note: "t", run: toggleTheme },
  { name: "Show keys", note: "?", run: showKeys },
];

const isHere = (/** @type {string} */ path) => path === place.value.path || (path === "/sessions" && place.value.path === "/session");

const links = () => PLACES.map(({ path, name, icon: mark }) => html`<a href=${path} aria-current=${isHere(path) ? "page" : null}>${icon(mark)}<span>${name}</span>${path === "/" && needing.value ? html`<span class="number-badge" aria-label=${`${needing.value} need you`}>${needing.value}</span>` : null}</a>`);

const liveMark = () => (connected.value ? html`<span class="live"><i class="live-dot pulse"></i>live</span>` : html`<span class="live s-failed">✗ reconnecting</span>`);

const banner = () => (connected.value ? null : html`<div class="banner" role="alert"><b>No answer from the server for ${span(now.value - lostAt.value)}.</b> <span>What you see is as of ${clock(lostAt.value)}. Actions wait until it is back; nothing you did is lost.</span><span class="push"></span><button @click=${connect}>Try now</button></div>`);

const view = () => html`<a class="skip" href="#main">Skip to content</a>
  <header class="bar"><a class="brand" href="/">${brand}<b>saveslot</b></a><nav class="places" aria-label="Places">${links()}</nav><span class="push"></span>
    ${me.value ? html`<span class="store">${namespaceView()} · ${plain(me.value.store)}</span>${liveMark()}` : null}
    <button class="find" @click=${openPalette} aria-label="Find or do">${icon("search")}<span>Find or do</span><kbd>Ctrl K</kbd></button>
    <button class="icon-button" @click=${toggleTheme} aria-label="Switch theme">${icon("theme")}</button>
    <a class="icon-button" href="/settings" aria-label="Settings" aria-current=${place.value.path === "/settings" ? "page" : null}>${icon("settings")}</a></header>
  ${banner()}
  <main id="main" class=${connected.value ? "" : "stale"} tabindex="-1">${screen.value ? screen.value.view() : waiting()}</main>
  <nav class="bottom" aria-label="Places on a phone">${links()}</nav>
  ${paletteView(commands())}${dialogView()}${signInView()}${toastView()}`;

effect(enter);
effect(() => {
  const number = needing.value ? `(${needing.value}) ` : "";
  document.title = number + (screen.value && place.value.path !== "/" ? `${plain(screen.value.title)} · saveslot` : "saveslot");
});
effect(() => render(view(), /** @type {Element} */ (document.getElementById("page"))));
effect(() => {
  if (!signedOut.value && !me.peek()) identify();
});
