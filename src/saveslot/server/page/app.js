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

/** The module of each path's screen, and what opens it. A module comes when its screen is first opened, and the others once that one is there. @type {Record<string, [string, string]>} */
const SCREENS = {
  "/": ["now.js", "nowScreen"],
  "/sessions": ["sessions.js", "sessionsScreen"],
  "/session": ["session.js", "sessionScreen"],
  "/compare": ["compare.js", "compareScreen"],
  "/storage": ["storage.js", "storageScreen"],
  "/analytics": ["analytics.js", "analyticsScreen"],
  "/events": ["events.js", "eventsScreen"],
  "/settings": ["settings.js", "settingsScreen"],
};

/** Of the screens whose modules are loaded. @type {Map<string, Open>} */
const opens = new Map();
const screen = signal(/** @type {Screen | null} */ (null));
/** Why the module of this place's screen did not come. */
const unloaded = signal("");
/** How often a module did not come: a browser asks once for each URL. @type {Map<string, number>} */
const failures = new Map();
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
  if (!open) show(key);
}

/** Show this place's screen once its module is there. @param {string} key of the place */
async function show(key) {
  const { path, id } = place.peek();
  try {
    const open = await load(path);
    if (shownKey === key) screen.value = open(id);
  } catch (error) {
    if (shownKey === key) unloaded.value = String(error);
  }
}

/** @param {string} path @returns {Promise<Open>} */
async function load(path) {
  const [file, name] = SCREENS[path];
  const failed = failures.get(file) ?? 0;
  try {
    const module = await import(`./${file}${failed ? `?again=${failed}` : ""}`);
    if (!opens.size) setTimeout(() => Object.keys(SCREENS).forEach((other) => opens.has(other) || load(other).catch(() => {})), LATER);
    opens.set(path, module[name]);
    return module[name];
  } catch (error) {
    failures.set(file, failed + 1);
    throw error;
  }
}

/** Ask for the module anew. Where that fails too but the server answers, it has another version of the page, or one that this module imports did not come: the page itself is loaded again. */
async function again() {
  unloaded.value = "";
  await show(shownKey);
  if (unloaded.peek() && (await fetch("/", { method: "HEAD" }).then(({ ok }) => ok, () => false))) location.reload();
}

/** The server may have another version of the page by now, or not answer. */
const waiting = () => (unloaded.value
  ? html`<section class="panel pad missing"><h1>This screen could not be loaded</h1><p>The server may have a newer version of the page, or not answer. <span class="soft">${plain(unloaded.value)}</span></p><p><button @click=${again}>Try again</button></p></section>`
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
  { keys: ["t"], text: "light or dark", run: toggleTheme },
  { keys: ["u"], text: "undo", run: undo },
  { keys: ["?"], text: "show these keys", run: showKeys },
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
