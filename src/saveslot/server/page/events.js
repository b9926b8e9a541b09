// @ts-check
/** The tail: entries of all sessions as they are written, newest first. */
import { Failure, apiUrl, get } from "./api.js";
import { cli, copyHere, copyText, curl } from "./copy.js";
import { eventRows, merged } from "./event_rows.js";
import { count, many } from "./format.js";
import { icon } from "./icons.js";
import { place, replace, withQuery } from "./places.js";
import { onEntry } from "./stream.js";
import { effect, each, html, signal, svg } from "./view.js";

/** @typedef {import("./stream.js").Entry} Entry */

// Entries that are drawn, and that wait while paused.
const SHOWN = 200;
const WAITING = 5000;
// Milliseconds from one change of the list to the next, however many entries come.
const PACE = 200;
const SECONDS = 60;
const GROUPS = /** @type {Record<string, string[]>} */ ({
  all: [],
  checkpoints: ["checkpoint", "rollback"],
  steps: ["step_started", "step_finished", "step_failed"],
  owners: ["taken", "claimed", "released"],
  trouble: ["failed", "step_failed", "claimed", "cancelled"],
});

/** `kind:` `agent:` `session:` `name:` tokens; a bare word is a session. Pure. @param {string} text @returns {Record<string, string[]>} */
export function eventFilters(text) {
  /** @type {Record<string, string[]>} */
  const filters = {};
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const [, token, rest] = word.match(/^(kind|agent|session|name):(.+)$/) ?? [];
    const name = { kind: "kind", agent: "agent_type", session: "session_id", name: "name" }[token ?? "session"] ?? "";
    filters[name] = [...(filters[name] ?? []), rest ?? word];
  }
  return filters;
}

export function eventsScreen() {
  const shown = signal(/** @type {readonly Entry[]} */ ([]));
  const waiting = signal(/** @type {readonly Entry[]} */ ([]));
  const waited = signal(0);
  const paused = signal(place.peek().query.get("paused") === "1");
  const skipped = signal(0);
  const trouble = signal("");
  const rates = signal(/** @type {readonly number[]} */ (Array(SECONDS).fill(0)));
  let second = 0;
  /** @type {Entry[]} */
  let queue = [];
  let timer = 0;
  let drainedAt = -PACE;

  const text = () => place.value.query.get("q") ?? "";
  const group = () => (GROUPS[place.value.query.get("kind") ?? ""] ? (place.value.query.get("kind") ?? "all") : "all");
  const wanted = () => {
    const filters = eventFilters(text());
    return { ...filters, kind: [...(filters.kind ?? []), ...GROUPS[group()]], max_rate: 200 };
  };

  /** Many entries, one change of the page. */
  function drain() {
    timer = 0;
    drainedAt = performance.now();
    const came = queue.reverse();
    queue = [];
    if (paused.peek()) {
      waited.value += came.length;
      waiting.value = [...came, ...waiting.peek()].slice(0, WAITING);
    } else shown.value = merged(came, shown.peek(), SHOWN);
  }

  let asked = 0;
  /** What was written before this was opened. @param {Record<string, any>} filters */
  async function loadPast({ max_rate: _, ...filters }) {
    const mine = ++asked;
    try {
      const { items } = await get("/entries", { ...filters, limit: SHOWN });
      if (mine !== asked) return;
      shown.value = merged(shown.peek(), items, SHOWN);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      trouble.value = error.message;
    }
  }

  let stopStream = () => {};
  const stopWatching = effect(() => {
    const filters = wanted();
    trouble.value = "";
    loadPast(filters);
    stopStream();
    stopStream = onEntry(filters, (entry) => {
      second++;
      queue.push(entry);
      timer ||= setTimeout(drain, Math.max(0, drainedAt + PACE - performance.now()));
    }, (n) => (skipped.value += n));
  });
  const rating = setInterval(() => {
    rates.value = [...rates.peek().slice(1), second];
    second = 0;
  }, 1000);

  function pause() {
    paused.value = !paused.peek();
    replace(withQuery({ paused: paused.peek() ? "1" : null }));
    if (paused.peek()) return;
    shown.value = merged(waiting.peek(), shown.peek(), SHOWN);
    waiting.value = [];
    waited.value = 0;
  }
  /** What stands in the box; the URL has it once typing rests. */
  const draft = signal(text());
  let typing = 0;
  /** @param {Event} event */
  function typed(event) {
    const { value } = /** @type {HTMLInputElement} */ (event.target);
    draft.value = value;
    clearTimeout(typing);
    typing = setTimeout(() => {
      shown.value = [];
      replace(withQuery({ q: value.trim() || null }));
    }, 250);
  }

  const shortcuts = () => [
    { keys: ["space"], text: "pause or go on", run: pause, where: "Events" },
    { keys: ["/"], text: "filter", run: () => document.querySelector(/** @type {"input"} */ (".search input"))?.focus(), where: "Events" },
    { keys: ["y"], text: "copy as CLI", run: () => copyText(cli(["tail"]), "the command"), where: "Events" },
  ];

  function view() {
    const values = rates.value;
    const most = Math.max(1, ...values);
    const rate = values.slice(-5).reduce((sum, n) => sum + n, 0) / 5;
    return html`<div class="headline"><h1>Events</h1><span class="soft">all sessions, as they are written</span><span class="push"></span>
        ${copyHere({ cli: cli(["tail", ...(eventFilters(text()).session_id ?? []).slice(0, 1)]), curl: curl(apiUrl("/events", wanted())) })}
        <button aria-pressed=${String(paused.value)} @click=${pause}>${paused.value ? "Go on" : "Pause"}<kbd aria-hidden="true">space</kbd></button></div>
      <div class="event-tools"><div class="search">${icon("search")}<input type="search" aria-label="Filter events" placeholder="kind: agent: session: name:" .value=${draft.value} @input=${typed}></div>
        <span class="segments">${Object.keys(GROUPS).map((name) => html`<button aria-pressed=${String(name === group())} @click=${() => { shown.value = []; replace(withQuery({ kind: name === "all" ? null : name })); }}>${name}</button>`)}</span></div>
      <section class="panel" aria-label="Entries"><div class="event-head"><b>${rate && rate < 10 ? rate.toFixed(1) : count(Math.round(rate))} events/s</b>
        <svg class="rate-bars" width="420" height="22" aria-hidden="true">${each(values, (_, i) => i, (n, i) => svg`<rect x=${i * 7} y=${22 - (20 * n) / most} width="5" height=${(20 * n) / most}/>`)}</svg>
        ${paused.value ? html`<span class="s-paused"><b>paused</b> · ${waited.value > WAITING ? `${count(WAITING)} and more wait` : many(waited.value, "entry waits", "entries wait")}</span>` : null}
        ${trouble.value ? html`<span class="s-failed">${trouble.value}</span>` : null}
        <span class="push soft">${skipped.value ? `${count(skipped.value)} left out, too fast · ` : ""}newest first</span></div>
        <div role="log" aria-live="off" tabindex="0" class="event-scroll">${shown.value.length ? eventRows(shown.value) : html`<p class="soft pad">${paused.value ? "Paused." : "Waiting for the next entry."}</p>`}</div></section>`;
  }

  return { title: "Events", view, shortcuts, dispose: () => { stopWatching(); stopStream(); clearInterval(rating); clearTimeout(timer); } };
}
