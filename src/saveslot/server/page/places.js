// @ts-check
/** The URL is where one is: all of a view that a link should bring back stands in it. */
import { signal } from "./view.js";

/** @typedef {{path: string, id: string, query: URLSearchParams}} Place */

/** @returns {Place} */
function here() {
  const { pathname, search } = location;
  href = location.href;
  const session = pathname.match(/^\/sessions\/(.+)$/);
  return { path: session ? "/session" : pathname, id: session ? decodeURIComponent(session[1]) : "", query: new URLSearchParams(search) };
}

let href = location.href;
export const place = signal(here());
/** Counts arrivals by a link, or back and forth in the browser's history: not what a screen does to its own URL. */
export const arrivals = signal(0);

/** Links name places; the namespace stays what it is. @param {string} url */
function inNamespace(url) {
  const ns = new URLSearchParams(location.search).get("ns");
  const [path, query = ""] = url.split("?");
  const wanted = new URLSearchParams(query);
  if (!ns || wanted.has("ns")) return url;
  wanted.set("ns", ns);
  return `${path}?${readable(wanted)}`;
}

/** What lies over the place, a dialog or the palette: the functions that close them, the uppermost last. @type {(() => void)[]} */
const layers = [];
/**
 * A step in the browser's history stands for what lies over the place: going back over it closes that, and leaves
 * nothing. Closed otherwise the step stays, for the next layer or place, and is skipped on the way back. It holds the
 * URL of the step below it.
 * @typedef {{below: string} | null} Step
 */
let step = /** @type {Step} */ (history.state);

/** Lay something over the place. @param {() => void} close @returns {() => void} to be called once it is closed */
export function layOver(close) {
  layers.push(close);
  if (!step) stepOver();
  return () => {
    if (layers.includes(close)) layers.splice(layers.indexOf(close), 1);
  };
}

function stepOver() {
  step = { below: location.href };
  history.pushState(step, "");
}

/** The browser went back or forth in its history. */
function onpop() {
  const [before, shown] = [step, href];
  step = history.state;
  if (!before || before.below !== location.href) {
    for (const close of layers.splice(0)) close();
    return arrive();
  }
  const close = layers.pop();
  if (!close) return history.back();
  close();
  // What the URL came to hold meanwhile stays.
  history.replaceState(null, "", shown);
  if (layers.length) stepOver();
}

function arrive() {
  place.value = here();
  arrivals.value++;
}

/** Go to another place. @param {string} url */
export function go(url) {
  const { href: target, pathname } = new URL(inNamespace(url), location.href);
  // A choice in a sheet over a list narrows the list; any other place has nothing over it.
  if (pathname !== location.pathname) for (const close of layers.splice(0)) close();
  if (layers.length) history.replaceState(step, "", target);
  else {
    history[step?.below === location.href ? "replaceState" : "pushState"](null, "", target);
    step = null;
  }
  arrive();
  scrollTo(0, 0);
}

/** The same place, seen otherwise: no new step in the browser's history. @param {string} url */
export function replace(url) {
  history.replaceState(step, "", url);
  place.value = here();
}

/** This place's URL with other parameters; null removes one. @param {Record<string, string | string[] | null>} changes */
export function withQuery(changes) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    for (const text of [value].flat()) if (text !== null && text !== "") query.append(name, text);
  }
  const text = readable(query);
  return location.pathname + (text ? `?${text}` : "");
}

/** @param {URLSearchParams} query @returns {string} with / @ : , as they are: they need no escape in a query */
export const readable = (query) => query.toString().replaceAll("%2F", "/").replaceAll("%40", "@").replaceAll("%3A", ":").replaceAll("%2C", ",");

/** @param {string} id @param {string} [ref] */
export const sessionUrl = (id, ref) => `/sessions/${encodeURIComponent(id)}${ref ? `?at=${encodeURIComponent(ref)}` : ""}`;

/** @param {Event} event @returns {HTMLAnchorElement | null} the link to another place of the page that this is about */
function linkOf(event) {
  const link = /** @type {Element} */ (event.target).closest("a[href]");
  if (!(link instanceof HTMLAnchorElement) || link.origin !== location.origin || link.target || link.hasAttribute("download")) return null;
  return link.pathname.startsWith("/v1/") || link.hash ? null : link;
}

addEventListener("popstate", onpop);
document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = linkOf(event);
  if (!link) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
// A link that is opened in another tab or copied leads to the same namespace, too.
for (const kind of ["mousedown", "contextmenu"]) {
  document.addEventListener(kind, (event) => {
    const link = linkOf(event);
    if (link) link.href = inNamespace(link.pathname + link.search);
  });
}
