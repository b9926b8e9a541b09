// @ts-check
/**
 * What other writers do, as it happens. One connection a page; it goes on where it ended, and says when it cannot.
 *
 * `fetch` instead of EventSource: that one retries at its own pace and gives no reason.
 */
import { apiUrl, signedOut } from "./api.js";
import { effect, signal } from "./view.js";

/** @typedef {{cursor: string, session_id: string, agent_type: string, seq: number, kind: string, name: string, timestamp: string, owner: string | null, bytes: number | null, state: string}} Entry `owner` and `bytes` are null where the server has not read them */

/** False while the server does not answer: nothing is done on what may be old. */
export const connected = signal(true);
/** Since when it does not, in seconds since 1970; 0 while it does. */
export const lostAt = signal(0);
/** Counts returns after which something may be missing: what is shown is read again. */
export const gaps = signal(0);

/** @type {{wanted: Record<string, any>, take: (entry: Entry) => void, skipped?: (n: number) => void} | null} */
let listener = null;
let abort = new AbortController();
/** Ends what is read now, as if the server had. */
let cut = () => {};
let cursor = "";
let pause = 1;
// Milliseconds without a word after which a connection counts as lost: the server sends a comment every 15 s.
const SILENCE = 40_000;
let timer = 0;

/**
 * Follow the entries that match; one listener at a time, that of the screen.
 * @param {Record<string, any>} wanted filters of `/v1/events` @param {(entry: Entry) => void} take @param {(n: number) => void} [skipped]
 * @returns {() => void} ends it
 */
export function onEntry(wanted, take, skipped) {
  const mine = { wanted, take, skipped };
  listener = mine;
  cursor = "";
  connect();
  return () => {
    if (listener !== mine) return;
    listener = null;
    abort.abort();
    clearTimeout(timer);
  };
}

/** @typedef {{id: string, seq: number, kind: string, name: string, timestamp: string, bytes: number | null, state: string, owner: string | null, agent_type: string}} Touched a session as its newest event of that second left it; `seq` is 0 where an owner fell silent or came back */
/** @typedef {{counts_by_kind: Record<string, number>, by_state: Record<string, number>, orphaned: number, late: number, touched: Touched[], more: number}} Digest */

/** Follow what happened second by second, however much that was. @param {(digest: Digest) => void} take @returns {() => void} ends it */
export const onDigest = (take) => onEntry({ digest: "1s" }, (/** @type {any} */ digest) => take(digest));

/** Try at once instead of after the pause. */
export function connect() {
  clearTimeout(timer);
  abort.abort();
  abort = new AbortController();
  if (listener) run(listener, abort.signal);
}

/** @param {NonNullable<typeof listener>} mine @param {AbortSignal} signal */
async function run(mine, signal) {
  try {
    const response = await fetch(apiUrl("/events", mine.wanted), { headers: { Accept: "text/event-stream", ...(cursor && { "Last-Event-ID": cursor }) }, signal });
    if (response.status === 401) {
      lostAt.value = 0; // it answers
      signedOut.value = true;
      return;
    }
    if (!response.ok || !response.body) throw new Error(`the stream answered ${response.status}`);
    if (lostAt.peek() && !cursor) gaps.value++;
    lostAt.value = 0;
    connected.value = true;
    pause = 1;
    for await (const { event, id, data } of parsed(response.body)) {
      if (listener !== mine) return;
      if (id) cursor = id;
      if (event === "reset") {
        cursor = "";
        gaps.value++;
      } else if (event === "skipped") mine.skipped?.(JSON.parse(data).n ?? JSON.parse(data));
      else if (data) mine.take(JSON.parse(data));
    }
  } catch {
    // Whatever ended it, it is tried again below; an abort is this page's own.
  }
  if (signal.aborted || listener !== mine) return;
  if (!lostAt.peek()) lostAt.value = Date.now() / 1000;
  setTimeout(() => { if (lostAt.peek()) connected.value = false; }, 5000);
  timer = setTimeout(connect, pause * 1000);
  pause = Math.min(30, pause * 2);
}

/** Server-sent events of a body. @param {ReadableStream<any>} body */
async function* parsed(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  cut = () => reader.cancel().catch(() => {});
  let text = "";
  for (;;) {
    const silent = setTimeout(cut, SILENCE);
    const { done, value } = await reader.read().finally(() => clearTimeout(silent));
    if (done) return;
    text += value;
    for (let end = text.search(/\r?\n\r?\n/); end >= 0; end = text.search(/\r?\n\r?\n/)) {
      const block = text.slice(0, end);
      text = text.slice(end).replace(/^\r?\n\r?\n/, "");
      const event = { event: "", id: "", data: "" };
      for (const line of block.split(/\r?\n/)) {
        const [, name, rest] = line.match(/^(event|id|data): ?(.*)$/) ?? [];
        if (name) event[/** @type {"event"} */ (name)] += rest;
      }
      if (event.event || event.data || event.id) yield event;
    }
  }
}

// A hidden page listens for another minute, and reads what it shows again when it is looked at.
let hiddenTimer = 0;
let slept = false;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => { slept = true; clearTimeout(timer); abort.abort(); }, 60_000);
  else if (slept) {
    slept = false;
    gaps.value++;
    connect();
  }
});
addEventListener("online", connect);
addEventListener("offline", () => cut());
effect(() => {
  if (!signedOut.value && listener) connect();
});
