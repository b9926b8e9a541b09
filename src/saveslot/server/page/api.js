// @ts-check
/** The JSON API as this page uses it: one namespace, typed failures, the same key for the same write. */
import { setServerDate } from "./clock.js";
import { signal } from "./view.js";

/** What the server lets this page do. @type {{value: Me | null, peek: () => Me | null}} */
export const me = signal(/** @type {Me | null} */ (null));
/** @typedef {{name: string, scope: "read" | "write" | "admin", namespaces: string[] | null, version: string, store: string, hot: boolean, worker_ttl: number, streams: number, limits: {requests: number, streams: number, body_bytes: number, state_bytes: number}}} Me */

/** True while a token is needed before anything can be shown. */
export const signedOut = signal(false);

export const namespace = () => new URLSearchParams(location.search).get("ns") ?? "default";

/** An answer that is not a success; `code` and the fields are those of the library's errors. */
export class Failure extends Error {
  /** @param {number} status @param {Record<string, any>} body */
  constructor(status, body) {
    super(body.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = /** @type {string} */ (body.code ?? "");
    this.body = body;
  }
  /** A write that may have been done: the same key asks again without doing it twice. */
  get unsure() {
    return this.status === 0 || this.status >= 500;
  }
}

/** @param {string} path @param {Record<string, string | number | boolean | string[] | null | undefined>} [query] */
export function apiUrl(path, query = {}) {
  const parameters = new URLSearchParams(namespace() === "default" ? {} : { ns: namespace() });
  for (const [name, value] of Object.entries(query)) {
    for (const one of [value].flat()) if (one !== null && one !== undefined && one !== "") parameters.append(name, String(one));
  }
  const text = parameters.toString();
  return `/v1${path}${text ? `?${text}` : ""}`;
}

/** `/sessions/facets` is not a session: one of that id has an escaped letter. @param {string} id */
export const sessionPath = (id) => `/sessions/${id === "facets" ? "%66acets" : encodeURIComponent(id)}`;

/** @param {string} url @param {RequestInit & {signal?: AbortSignal}} options */
async function ask(url, options = {}) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Failure(0, { code: "unreachable", message: "no answer from the server" });
  }
  setServerDate(response.headers.get("Date"));
  if (response.status === 401) signedOut.value = true;
  if (!response.ok) throw new Failure(response.status, await response.json().catch(() => ({})));
  return response;
}

/**
 * @param {string} path
 * @param {Record<string, string | number | boolean | string[] | null | undefined>} [query]
 * @param {AbortSignal} [abort]
 * @returns {Promise<any>}
 */
export async function get(path, query, abort) {
  return (await ask(apiUrl(path, query), { signal: abort })).json();
}

/** One key a dialog: a repeated or doubled click is the same write. */
export const freshKey = () => [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");

/**
 * @param {"POST" | "PATCH" | "DELETE" | "PUT"} method
 * @param {string} path
 * @param {{query?: Record<string, any>, body?: unknown, ifMatch?: string, key?: string, headers?: Record<string, string>}} [request]
 * @returns {Promise<any>} the answer, or null if it has no body
 */
export async function send(method, path, { query, body, ifMatch, key, headers } = {}) {
  const response = await ask(apiUrl(path, query), {
    method,
    headers: {
      ...(body !== undefined && { "Content-Type": "application/json" }),
      ...(ifMatch && { "If-Match": ifMatch }),
      ...(key && { "Idempotency-Key": key }),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return response.status === 204 ? null : response.json().catch(() => null);
}

const SCOPES = ["read", "write", "admin"];
/** @param {"read" | "write" | "admin"} scope @returns {string} why it cannot be done, "" if it can */
export function missing(scope) {
  const mine = me.value;
  if (!mine) return "";
  return SCOPES.indexOf(mine.scope) >= SCOPES.indexOf(scope) ? "" : `needs scope ${scope}`;
}
