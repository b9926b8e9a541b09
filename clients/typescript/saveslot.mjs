// @ts-check
/**
 * The JSON API of `saveslot serve`, for browsers, Node, Deno and Bun: fetch, and nothing else.
 *
 * Every write has an Idempotency-Key, a new one if the caller gives none. A write whose answer was lost is sent again
 * with the same key, and is done once.
 */

/**
 * @import { Claim, Data, DataQuery, EventsQuery, Lease, NewCheckpoint, NewLease, NewSession, NewStep } from "./types.d.ts"
 * @import { PageOfLease, Problem, SavedCheckpoint, ServerEvent, Session, SessionChanges, SessionQuery } from "./types.d.ts"
 * @import { StepRun } from "./types.d.ts"
 */
/**
 * Options of a write. `seen`: the version that it follows, or "*"; the server refuses it if there is a newer one.
 * `key`: the same call with the same key gets the first answer. `lease`: the lease to write under.
 * @typedef {{ seen?: string, key?: string, lease?: Lease, signal?: AbortSignal }} Write
 */
/**
 * What a stream yields. `began` is the first event of a stream that begins now: whatever is appended after it, follows.
 * @typedef {ServerEvent | { type: "began", id: string }} WatchEvent
 */
/** @typedef {{ query?: object, body?: unknown, headers?: Record<string, string>, signal?: AbortSignal }} Call */

// Requests in all, with the first; then the caller gets the error.
const ATTEMPTS = 5;
// Milliseconds: the first pause between two attempts, and the longest.
const PAUSE = 100, LONGEST = 10_000;
// Milliseconds without a byte after which a stream is dead: the server sends a comment every 15 seconds.
const SILENT = 45_000;

/** An error of the server. `problem` has all of its fields; `unavailable` with status 0 means that no answer came. */
export class SaveslotError extends Error {
  /** @param {Problem} problem @param {ErrorOptions & { retryAfter?: number }} [options] */
  constructor(problem, { retryAfter = 0, ...options } = {}) {
    super(problem.message, options);
    /** Seconds that the server asks for before another attempt. */
    this.retryAfter = retryAfter;
    this.name = "SaveslotError";
    this.code = problem.code;
    this.status = problem.status;
    this.problem = problem;
  }
}

/** The sessions of one namespace at a server. */
export class SessionManager {
  #base;
  #headers;
  #timeout;

  /**
   * @param {string} url
   * @param {{ token?: string, namespace?: string, timeout?: number }} [options] `timeout`: milliseconds of one attempt
   */
  constructor(url, { token, namespace, timeout = 30_000 } = {}) {
    this.#base = `${url.replace(/\/+$/, "")}/v1`;
    this.#headers = new Headers({ ...(token && { authorization: `Bearer ${token}` }) });
    if (namespace) this.#headers.set("saveslot-namespace", namespace);
    this.#timeout = timeout;
  }

  /** @param {NewSession} session @param {Pick<Write, "key" | "signal">} [write] @returns {Promise<Session>} */
  createSession(session, write) {
    return this.#write("POST", "/sessions", session, write);
  }

  /** @param {string} id @param {SessionQuery} [query] @returns {Promise<Session>} */
  getSession(id, query) {
    return this.request("GET", at(id), { query });
  }

  /** The state as of an entry. @param {string} id @param {DataQuery} [query] @returns {Promise<Data>} */
  getData(id, query) {
    return this.request("GET", `${at(id)}/data`, { query });
  }

  /**
   * When it returns, the checkpoint is durable. The answer leaves out `data`.
   * @param {string} id @param {NewCheckpoint} checkpoint @param {Write} [write] @returns {Promise<SavedCheckpoint>}
   */
  checkpoint(id, checkpoint, write) {
    return this.#write("POST", `${at(id)}/checkpoints`, checkpoint, write, { prefer: "return=minimal" });
  }

  /**
   * @param {string} id @param {string | number} to @param {Write & { seen: string }} write
   * @returns {Promise<SavedCheckpoint>}
   */
  rollback(id, to, write) {
    return this.#write("POST", `${at(id)}/rollback`, { to }, write);
  }

  /**
   * Set keys of its context, metadata and labels; null removes one.
   * @param {string} id @param {SessionChanges} changes @param {Omit<Write, "lease"> & { seen: string }} write
   * @returns {Promise<Session>}
   */
  updateSession(id, changes, write) {
    return this.#write("PATCH", at(id), changes, write);
  }

  /** @param {string} id @param {unknown} [result] any JSON value @param {Write} [write] @returns {Promise<Session>} */
  complete(id, result = null, write) {
    return this.#write("POST", `${at(id)}/complete`, { result }, write);
  }

  /** @param {string} id @param {string} error why, in a few words @param {Write} [write] @returns {Promise<Session>} */
  fail(id, error, write) {
    return this.#write("POST", `${at(id)}/fail`, { error }, write);
  }

  /** Delete that version of it. @param {string} id @param {string} seen @returns {Promise<void>} */
  deleteSession(id, seen) {
    return this.request("DELETE", at(id), { headers: following(seen) });
  }

  /**
   * Hold a session: until the lease ends, nobody else saves checkpoints.
   * @param {string} id @param {NewLease} [lease] @param {Pick<Write, "key" | "signal">} [write] @returns {Promise<Lease>}
   */
  lease(id, lease = {}, write) {
    return this.#write("POST", `${at(id)}/lease`, lease, write);
  }

  /**
   * Take over sessions whose workers died. The same call with the same `key` claims nothing more, and renews no lease.
   * @param {Claim} [claim] @param {Pick<Write, "key" | "signal">} [write] @returns {Promise<Lease[]>}
   */
  async claim(claim = {}, write = {}) {
    const page = /** @type {PageOfLease} */ (await this.#write("POST", "/claims", claim, write));
    return page.items;
  }

  /** From here on it lasts `ttl` seconds again. @param {Lease} lease @returns {Promise<Lease>} */
  renew(lease) {
    return this.request("PUT", leased(lease));
  }

  /**
   * Give a lease up; with an `error`, another worker may claim the session.
   * @param {Lease} lease @param {string} [error] @returns {Promise<void>}
   */
  release(lease, error) {
    return this.request("DELETE", leased(lease), { query: { error }, headers: { "idempotency-key": crypto.randomUUID() } });
  }

  /**
   * Do something once, under a lease: a finished step returns its stored result, and `work` is not called. `work` gets
   * the key by which what it calls can recognise a repetition, and the number of this attempt. The result is stored as
   * JSON. With `mode: "at_most_once"`, a step that was begun and not ended is `step_unknown`, unless `on_unknown` says
   * otherwise.
   * @param {Lease} lease @param {string} name
   * @param {(run: { idempotencyKey: string, attempt: number }) => unknown} work
   * @param {Omit<NewStep, "name"> & { signal?: AbortSignal }} [options]
   * @returns {Promise<any>}
   */
  async step(lease, name, work, { signal, ...options } = {}) {
    const steps = `${at(lease.session_id)}/steps`;
    const end = [steps, ...[name, options.key].filter((part) => part != null).map((part) => encodeURIComponent(String(part)))].join("/");
    const write = { lease, signal };
    for (;;) {
      const run = /** @type {StepRun} */ (await this.#write("POST", steps, { name, ...options }, write));
      if (run.state === "finished") return run.result;
      if (run.pause) await pause(0, run.pause, signal);
      let result;
      try {
        result = (await work({ idempotencyKey: run.idempotency_key, attempt: run.attempt })) ?? null;
      } catch (error) {
        const again = run.attempt <= (options.retries ?? 0);
        await this.#write("POST", end, { error: String(error), again }, write);
        if (again) continue;
        throw error;
      }
      await this.#write("POST", end, { result }, write);
      return result;
    }
  }

  /**
   * What is appended, from now or after `after`, an event's `id`. A lost connection is taken up again after the last
   * event, at any server of the store, without a gap or a repeat. It ends when `signal` aborts.
   * @param {Omit<EventsQuery, "owners" | "digest"> & { signal?: AbortSignal }} [wanted]
   * @returns {AsyncGenerator<WatchEvent, void, void>}
   */
  async *watch({ after = "", signal, ...query } = {}) {
    for (let failures = 0; !signal?.aborted; failures++) {
      let wait = 0;
      const connection = new AbortController();
      const end = () => connection.abort();
      signal?.addEventListener("abort", end);
      let timer = setTimeout(end, SILENT);
      const alive = () => {
        clearTimeout(timer);
        timer = setTimeout(end, SILENT);
      };
      try {
        const headers = { accept: "text/event-stream", ...(after && { "last-event-id": after }) };
        const response = await this.#attempt("GET", "/events", { query, headers, signal: connection.signal });
        for await (const { event, id, data } of blocks(response, alive)) {
          failures = 0;
          const began = after === "" && data === "";
          after = id || after;
          if (data) yield /** @type {ServerEvent} */ ({ type: event, id: after, data: JSON.parse(data) });
          else if (began && after) yield { type: "began", id: after };
        }
      } catch (error) {
        if (!(error instanceof SaveslotError && error.code === "unavailable")) throw error;
        wait = error.retryAfter;
      } finally {
        clearTimeout(timer);
        signal?.removeEventListener("abort", end);
        connection.abort();
      }
      await pause(failures, wait, signal);
    }
  }

  /**
   * Any request that `/docs` shows, by its path after /v1. One that can be repeated safely is, while no answer comes:
   * GET, PUT, and whatever has an Idempotency-Key.
   * @param {string} method @param {string} path @param {Call} [call]
   * @returns {Promise<any>} the answer's JSON
   */
  async request(method, path, { signal, ...call } = {}) {
    const safe = method === "GET" || method === "PUT" || "idempotency-key" in (call.headers ?? {});
    for (let failures = 0; ; failures++) {
      const timeout = AbortSignal.timeout(this.#timeout);
      const either = signal ? AbortSignal.any([signal, timeout]) : timeout;
      let wait = 0;
      try {
        const response = await this.#attempt(method, path, { ...call, signal: either });
        const text = await response.text().catch(unanswered);
        return text ? JSON.parse(text) : undefined;
      } catch (error) {
        signal?.throwIfAborted();
        if (!(error instanceof SaveslotError && error.code === "unavailable")) throw error;
        // A request that is answered 429 was not done.
        if (!(safe || error.status === 429) || failures + 1 === ATTEMPTS) throw error;
        wait = error.retryAfter;
      }
      await pause(failures, wait, signal);
      signal?.throwIfAborted();
    }
  }

  /** @param {string} method @param {string} path @param {unknown} body @param {Write} [write] @param {object} [more] */
  #write(method, path, body, { seen, key = crypto.randomUUID(), lease, signal } = {}, more = {}) {
    const held = lease && { "saveslot-lease": lease.lease_id };
    const all = { ...more, ...following(seen), ...held, "idempotency-key": key };
    return this.request(method, path, { body, signal, headers: all });
  }

  /** One request; only a success returns. @param {string} method @param {string} path @param {Call} call */
  async #attempt(method, path, { query = {}, body, headers = {}, signal }) {
    const url = new URL(this.#base + path);
    // A URL drops the segments "." and "..", so the request would be about something else.
    if (!url.pathname.endsWith(path)) throw new SaveslotError(problem(0, "invalid_input", `${path} is not a path`));
    for (const [name, value] of Object.entries(query)) {
      for (const one of [value].flat()) if (one !== undefined) url.searchParams.append(name, String(one));
    }
    const all = new Headers(this.#headers);
    for (const [name, value] of Object.entries(headers)) all.set(name, value);
    if (body !== undefined) all.set("content-type", "application/json");
    const response = await fetch(url, { method, headers: all, body: JSON.stringify(body), signal }).catch(unanswered);
    if (response.ok) return response;
    const text = await response.text().catch(unanswered);
    const retryAfter = Number(response.headers.get("retry-after")) || 0;
    throw new SaveslotError(asProblem(response.status, text), { retryAfter });
  }
}

/** The path of a session. `/sessions/facets` is not one: that id has an escaped letter. @param {string} id */
const at = (id) => `/sessions/${id === "facets" ? "%66acets" : encodeURIComponent(id)}`;

/** @param {Lease} lease */
const leased = (lease) => `${at(lease.session_id)}/lease/${lease.lease_id}`;

/** @param {string} [seen] @returns {Record<string, string>} */
const following = (seen) => (seen === undefined ? {} : { "if-match": seen === "*" ? seen : `"${seen}"` });

/** @param {number} status @param {Problem["code"]} code @param {string} message @returns {Problem} */
const problem = (status, code, message) => {
  return { type: `urn:saveslot:error:${code}`, title: "", status, detail: message, code, message };
};

/** The problem in an answer of the server, or of a proxy before it. @param {number} status @param {string} text @returns {Problem} */
function asProblem(status, text) {
  try {
    const body = JSON.parse(text);
    if (typeof body.code === "string") return body;
  } catch {
    // The page of a proxy.
  }
  const code = [502, 503, 504].includes(status) ? "unavailable" : "error";
  return problem(status, code, `status ${status}, not from saveslot: ${text.slice(0, 200)}`);
}

/** @param {unknown} cause @returns {never} */
function unanswered(cause) {
  throw new SaveslotError(problem(0, "unavailable", "the server did not answer, or not to the end; retry"), { cause });
}

/**
 * Wait longer after each failure, at least `least` seconds, with jitter; the signal ends the wait.
 * @param {number} failures @param {number} least @param {AbortSignal} [signal] @returns {Promise<void>}
 */
function pause(failures, least, signal) {
  const milliseconds = Math.max(1000 * least, Math.min(LONGEST, PAUSE * 2 ** failures)) * (1 + Math.random() / 2);
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, signal?.aborted ? 0 : milliseconds);
    signal?.addEventListener("abort", done);
  });
}

/** Server-sent events. @param {Response} response @param {() => void} alive called whenever something comes */
async function* blocks(response, alive) {
  const reader = /** @type {ReadableStream<any>} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { done, value } = await reader.read().catch(unanswered);
    if (done) return;
    alive();
    const parts = (text + value).split("\n\n");
    text = /** @type {string} */ (parts.pop());
    for (const part of parts) {
      const block = { event: "message", id: "", data: "" };
      for (const line of part.split("\n")) {
        const [, name, rest] = line.match(/^(event|id|data): ?(.*)$/) ?? [];
        if (name) block[/** @type {"event" | "id" | "data"} */ (name)] = rest;
      }
      yield block;
    }
  }
}
