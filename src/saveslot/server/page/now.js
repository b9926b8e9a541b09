// @ts-check
/** What needs a person, and what is at work. */
import { apiUrl, get, sessionPath } from "./api.js";
import * as actions from "./actions.js";
import { actionButton } from "./button.js";
import { now } from "./clock.js";
import { cli, copyHere, copyText, curl } from "./copy.js";
import { emptyView } from "./empty.js";
import { spark } from "./charts.js";
import { eventRows, merged } from "./event_rows.js";
import { clock, count, many, plain, short, span } from "./format.js";
import { stateWord } from "./icons.js";
import { HOUR, inNeed, needing } from "./needing.js";
import { outlookLine } from "./outlook.js";
import { go, place, sessionUrl } from "./places.js";
import { shapeSource } from "./shapes.js";
import { ownerName, smallTape } from "./small_tape.js";
import { connected, onDigest } from "./stream.js";
import { healthView } from "./health.js";
import { throughput, throughputView } from "./throughput.js";
import { each, html, signal } from "./view.js";

/** @typedef {{id: string, state: "orphaned" | "failed" | "late", agent: string, reason: string, owner: string, since: number}} Need */

// Seconds between two readings of the rows while sessions change, at least; and between those of what changes slowly.
const LOOK = 2;
const SLOW = 15;
// Milliseconds after which news is read: what belongs together comes together.
const SETTLE = 300;
// Rows: of what needs a person, of failures with one reason before they are drawn as one, at work, and of the newest events.
const NEEDS = 12;
const ALIKE = 3;
const BUSY = 12;
const NEWEST = 9;
/** What an hour counts beside each state, and its word. */
const DAILY = /** @type {Record<string, [string, string]>} */ ({ active: ["created", "created"], completed: ["ended", "ended"], failed: ["failed", "failed"], orphaned: ["claimed", "taken over"] });
// Seconds that the common axis reaches back.
const REACH = 600;

/** Orphans first, then failures, then those that are late; newest first. Pure. @param {any} failures @param {readonly any[]} active @returns {Need[]} */
export function needs(failures, active) {
  const troubles = failures.items.map((/** @type {any} */ item) => ({ id: item.session_id, state: item.state, agent: item.agent_type, reason: item.reason, owner: item.last_owner, since: Date.parse(item.since) / 1000 }));
  const late = active.filter((row) => row.owner?.late && !row.orphaned).map((row) => ({ id: row.session_id, state: /** @type {const} */ ("late"), agent: row.agent_type, reason: "", owner: row.owner.worker, since: Date.parse(row.owner.silent_since) / 1000 }));
  return [...troubles.filter((/** @type {Need} */ n) => n.state === "orphaned"), ...troubles.filter((/** @type {Need} */ n) => n.state === "failed"), ...late];
}

/** The same needs in the order of others, new ones last: rows keep their places while one of them has the focus. Pure. @param {readonly Need[]} found @param {readonly Need[]} before @returns {Need[]} */
export function inOrder(found, before) {
  const known = before.flatMap(({ id }) => found.find((need) => need.id === id) ?? []);
  return [...known, ...found.filter((need) => !known.includes(need))];
}

/** Failures with the same reason, if there are more than three, as one row. Pure. @param {readonly Need[]} all @returns {{need: Need, more: number}[]} */
export function grouped(all) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { state, reason } of all) if (state === "failed") counts.set(reason, (counts.get(reason) ?? 0) + 1);
  const seen = new Set();
  return all.flatMap((need) => {
    const alike = need.state === "failed" ? (counts.get(need.reason) ?? 0) : 0;
    if (alike <= ALIKE) return [{ need, more: 0 }];
    if (seen.has(need.reason)) return [];
    seen.add(need.reason);
    return [{ need, more: alike - 1 }];
  });
}

export function nowScreen() {
  const facets = signal(/** @type {any} */ (null));
  const wanting = signal(/** @type {Need[]} */ ([]));
  /** Of all that failed in the last hour, of which `wanting` has the newest. */
  const failed = signal(0);
  const stats = signal(/** @type {any} */ (null));
  const tiers = signal(/** @type {any} */ (null));
  const hours = signal(/** @type {any} */ (null));
  const busy = signal(/** @type {readonly any[]} */ ([]));
  const newest = signal(/** @type {readonly import("./stream.js").Entry[]} */ ([]));
  const outlooks = signal(/** @type {ReadonlyMap<string, any>} */ (new Map()));
  const shapes = shapeSource();
  const rate = throughput();
  let timer = 0;
  let slow = 0;
  let read = 0;
  let digested = false;
  let pointerInside = false;

  /** Read rows once news has settled, and not again at once, however much happens. */
  function soon() {
    timer ||= setTimeout(load, Math.max(SETTLE, read + LOOK * 1000 - performance.now()));
  }

  async function load() {
    clearTimeout(timer);
    timer = 0;
    read = performance.now();
    try {
      const [counts, failures, page] = await Promise.all([digested ? null : get("/sessions/facets", { level: "cached" }), get("/failures", { since: HOUR }), get("/sessions", { state: "active", sort: "changed", limit: 50 })]);
      if (!digested) tally(counts.by_state, counts.orphaned);
      const found = needs(failures, page.items);
      // Rows do not move under the pointer or the focus: an order that differs waits.
      if (!pointerInside || found.length === 0) wanting.value = document.activeElement?.closest(".needs-table") ? inOrder(found, wanting.peek()) : found;
      failed.value = failures.reasons.reduce((/** @type {number} */ sum, /** @type {any} */ { sessions }) => sum + sessions, 0);
      needing.value = inNeed(failures);
      busy.value = page.items.filter((/** @type {any} */ row) => now.peek() - Date.parse(row.last_heartbeat) / 1000 < REACH).slice(0, BUSY);
      const seen = grouped(wanting.peek()).slice(0, NEEDS).map(({ need }) => need.id);
      shapes.want([...seen, ...busy.peek().map((row) => row.session_id)], true);
      const known = await Promise.all(seen.map(async (id) => /** @type {const} */ ([id, await get(`${sessionPath(id)}/outlook`).catch(() => null)])));
      outlooks.value = new Map(known);
    } catch {
      // The stream's banner says that the server does not answer; this looks again all the same.
    }
  }

  /** @param {Record<string, number>} states @param {number} orphaned */
  function tally(states, orphaned) {
    facets.value = { by_state: states, orphaned, sessions: Object.values(states).reduce((sum, n) => sum + n, 0) };
  }

  /** What changes slowly, or costs more. */
  async function loadSlow() {
    soon(); // a failure may be an hour old by now
    try {
      const [numbers, storage, buckets] = await Promise.all([get("/stats"), get("/storage"), get("/stats/buckets", { bucket: HOUR, since: 24 * HOUR })]);
      stats.value = numbers;
      tiers.value = storage.tiers;
      hours.value = buckets;
    } catch {
      // As above.
    }
    slow = setTimeout(loadSlow, SLOW * 1000);
  }

  const stopStream = onDigest((digest) => {
    digested = true;
    rate.take(digest);
    tally(digest.by_state, digest.orphaned);
    const entries = digest.touched.filter(({ seq }) => seq).slice(-NEWEST).reverse();
    newest.value = merged(entries.map((touched) => ({ ...touched, cursor: "", session_id: touched.id })), newest.peek(), NEWEST);
    soon();
  });
  load();
  loadSlow();
  get("/entries", { limit: NEWEST }).then(({ items }) => (newest.value = merged(newest.peek(), items, NEWEST))).catch(() => {});

  /** @param {string} id @param {string} state */
  async function act(id, state) {
    const [session, outlook, { items }] = await Promise.all([get(sessionPath(id)), get(`${sessionPath(id)}/outlook`), get(`${sessionPath(id)}/log`, { limit: 100 })]);
    if (state === "failed") actions.recover({ id, state: session.state, orphaned: session.orphaned, version: session.version, owner: session.owner, outlook, entries: items, live: connected.peek(), changed: load });
    else go(sessionUrl(id));
  }

  function sentence() {
    const { by_state: states, orphaned } = facets.value;
    const total = Object.values(states).reduce((sum, n) => sum + n, 0);
    const note = html`<span class="sentence-note">${clock(now.value)} UTC · namespace ${plain(place.value.query.get("ns") ?? "default")}</span>`;
    if (!orphaned && !failed.value) return html`<h1 class="now-sentence">${total === 1 ? "The one session is well." : `All ${count(total)} are well.`} ${note}</h1>`;
    return html`<h1 class="now-sentence">${orphaned ? html`<span class="s-orphaned">${count(orphaned)} orphaned</span>` : null}${orphaned && failed.value ? ", " : ""}${failed.value ? html`<span class="s-failed">${count(failed.value)} failed</span> in the last hour` : null}. ${count(states.active)} ${states.active === 1 ? "is" : "are"} active in all. ${note}</h1>`;
  }

  /** What happened hour by hour, over a day: created, completed, failed, taken over. @param {string} word */
  function curve(word) {
    const values = hourly(word);
    return values?.some(Boolean) ? spark(values, word) : null;
  }
  /** @param {string} word */
  function dayText(word) {
    const sum = hourly(word)?.reduce((a, b) => a + b, 0);
    return sum ? html`<span class="soft curve">${count(sum)} ${DAILY[word][1]} in 24 h</span>` : null;
  }
  /** @param {string} word @returns {number[] | null} */
  const hourly = (word) => (DAILY[word] && hours.value ? hours.value.items.map((/** @type {any} */ bucket) => bucket[DAILY[word][0]]) : null);

  const counters = () => {
    const { by_state: states, orphaned } = facets.value;
    const values = /** @type {[string, number][]} */ ([["active", states.active], ["paused", states.paused], ["completed", states.completed], ["failed", states.failed], ["orphaned", orphaned]]);
    return html`<section class="panel counters" aria-label="Sessions by state" aria-live="polite">${each(values, ([word]) => word, ([word, number]) => html`<a class="counter" href=${`/sessions?state=${word}`}><span class="counter-line">${stateWord(word)}${word === "orphaned" && number ? html`<span class="soft curve wide-only">of those active or paused</span>` : dayText(word)}</span><span class="counter-line"><b>${count(number)}</b>${curve(word)}</span></a>`)}</section>`;
  };

  /** @param {{need: Need, more: number}} row */
  function needRow({ need: { id, state, agent, reason, owner, since }, more }) {
    const shape = shapes.of(id);
    const outlook = outlooks.value.get(id);
    const open = outlook?.steps.unknown.length;
    const text = state === "late" ? `no heartbeat for ${span(now.value - since)}` : reason || "its worker is silent";
    const why = outlook ? actions.why({ id, state, orphaned: state === "orphaned", version: "", owner: null, outlook, entries: [], live: connected.value, changed: load }, "recover") : "";
    return html`<tr class="need"><td class="n-state">${stateWord(state)}</td>
      <td class="n-id"><a href=${sessionUrl(id)}><b>${plain(id)}</b></a> <span class="soft">${plain(agent)}</span><div class="reason">${plain(text)}${more ? html` <a href="/sessions?state=failed">and ${many(more, "more session")}</a>` : null}</div></td>
      <td class="n-tape">${shape ? smallTape(shape, { width: 176 }) : null}</td>
      <td class="n-owner">${ownerName(owner, shape)}</td><td class="n-since"><span class="live-age">${short(now.value - since)} ago</span></td>
      <td class="n-outlook">${outlook ? outlookLine(outlook) : null}</td>
      <td class="n-action">${state === "failed" ? actionButton("Recover…", "", why, () => act(id, state)) : html`<a class="button" href=${sessionUrl(id)}>${open ? "Decide…" : "Look"}</a>`}</td></tr>`;
  }

  const command = () => cli(["ls", "--state", "failed"]);
  const copies = () => copyHere({ cli: command(), curl: curl(apiUrl("/failures", { since: HOUR })) });
  const shortcuts = () => [{ keys: ["y"], text: "copy as CLI", run: () => copyText(command(), "the command"), where: "Now" }];

  function needsPanel() {
    const rows = grouped(wanting.value);
    if (!rows.length) return html`<section class="panel pad all-well"><b>Needs you</b> <span class="soft">nothing: none is orphaned, late, or failed in the last hour</span><span class="push"></span>${copies()}</section>`;
    const by = (/** @type {string} */ word) => wanting.value.filter(({ state }) => state === word).length;
    const parts = [by("orphaned") && `${by("orphaned")} orphaned`, failed.value && `${count(failed.value)} failed in the last hour`, by("late") && `${by("late")} late`].filter(Boolean);
    return html`<section class="panel" aria-label="Needs you" @pointerenter=${() => (pointerInside = true)} @pointerleave=${() => { pointerInside = false; soon(); }} @focusout=${soon}><header class="panel-head"><h2>Needs you</h2><span class="soft">${parts.join(", ")}</span><span class="push"></span>
      ${copies()}<a class="quiet-link" href="/sessions?state=failed">all ${count(facets.value.by_state.failed)} failed</a></header>
      <table class="needs-table"><thead><tr><th class="n-state">State</th><th class="n-id">Session and reason</th><th class="n-tape">Its tape</th><th class="n-owner">Last owner</th><th class="n-since">Since</th><th class="n-outlook">Can it go on?</th><th class="n-action"><span class="hidden">Action</span></th></tr></thead>
      <tbody>${each(rows.slice(0, NEEDS), ({ need }) => need.id, needRow)}</tbody></table></section>`;
  }

  function wall() {
    if (!busy.value.length) return html`<section class="panel pad"><b>At work</b> <span class="soft">nothing in the last 10 minutes</span></section>`;
    return html`<section class="panel" aria-label="At work"><header class="panel-head"><h2>At work</h2><span class="soft">${many(facets.value.by_state.active, "active session")}; those that changed last, over 10 minutes</span></header>
      <ul class="wall">${each(busy.value, (row) => row.session_id, (row) => {
        const shape = shapes.of(row.session_id);
        return html`<li><a href=${sessionUrl(row.session_id)}><b>${plain(row.session_id)}</b></a><span class="mono soft">${plain(row.newest?.name ?? "")}</span>
          <span class="wall-tape">${shape ? smallTape(shape, { width: 560, from: shape.now_s - REACH, to: shape.now_s, ends: false }) : null}</span>
          <span>${row.orphaned ? stateWord("orphaned") : ownerName(row.owner?.worker ?? "", shape)}</span></li>`;
      })}</ul><div class="wall-axis soft"><span>10 m ago</span><span>7½</span><span>5</span><span>2½</span><span>now</span></div></section>`;
  }

  function view() {
    if (!facets.value) return html`<div class="panel loading"></div>`;
    if (!facets.value.sessions) return emptyView();
    return html`${sentence()}${counters()}<div class="now-columns"><div class="stack">${needsPanel()}${wall()}</div>
      <div class="stack">${throughputView(rate, stats.value?.rates["60s"].bytes)}${healthView(stats.value, tiers.value)}<section class="panel" aria-label="Just now"><header class="panel-head"><h2>Just now</h2><span class="push"></span><a class="quiet-link" href="/events">all events</a></header>${newest.value.length ? eventRows(newest.value, true) : html`<p class="soft pad">waiting for the next entry</p>`}</section></div></div>`;
  }

  return { title: "Now", view, shortcuts, dispose: () => { stopStream(); clearTimeout(timer); clearTimeout(slow); shapes.stop(); rate.stop(); } };
}
