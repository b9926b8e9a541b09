// @ts-check
/** The URL is where one is: all of a view that a link should bring back stands in it. */
import { signal } from "./view.js";

/** @typedef {{path: string, id: string, query: URLSearchParams}} Place */

/** @returns {Place} */
function here() {
  const { pathname, search } = location;
  const session = pathname.match(/^\/sessions\/(.+)$/);
  return { path: session ? "/session" : pathname, id: session ? decodeURIComponent(session[1]) : "", query: new URLSearchParams(search) };
}

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

/** Go to another place. @param {string} url */
export function go(url) {
  history.pushState(null, "", inNamespace(url));
  place.value = here();
  arrivals.value++;
  scrollTo(0, 0);
}

/** The same place, seen otherwise: no new step in the browser's history. @param {string} url */
export function replace(url) {
  history.replaceState(null, "", url);
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

addEventListener("popstate", () => {
  place.value = here();
  arrivals.value++;
});
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
