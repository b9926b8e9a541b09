// @ts-check
/** All sessions: search, facets, and a list that reads pages as it scrolls. */
import { apiUrl, get } from "./api.js";
import { now } from "./clock.js";
import { bulkBar } from "./bulk.js";
import { cli, copyHere, copyText, curl } from "./copy.js";
import { ask } from "./dialog.js";
import { facetsView, histogram } from "./facets.js";
import { count, many, plain, short, size } from "./format.js";
import { icon, stateWord } from "./icons.js";
import { go, place, replace, sessionUrl, withQuery } from "./places.js";
import { TOKENS, fromUrl, misfits, parse, print, toApi, toCli } from "./query.js";
import { shapeSource } from "./shapes.js";
import { ownerName, smallTape } from "./small_tape.js";
import { onDigest } from "./stream.js";
import { effect, each, html, memo, signal } from "./view.js";
import { savedViews } from "./saved_views.js";

/** @typedef {Record<string, any>} Row a session as lists have it */

const PAGE = 100;
const AHEAD = 12;
// Rows that the list moves on at once.
const STRIDE = 4;
// Milliseconds after which the first page is read again, once sessions of it changed or new ones came.
const SETTLE = 2000;

/** @type {WeakMap<import("./small_tape.js").Shape, ReturnType<typeof smallTape>>} */
const tapes = new WeakMap();
/** A shape is laid out once, however often its row is drawn. @param {import("./small_tape.js").Shape} shape */
function tapeOf(shape) {
  const drawn = tapes.get(shape) ?? smallTape(shape);
  tapes.set(shape, drawn);
  return drawn;
}

export function sessionsScreen() {
  const rows = signal(/** @type {readonly Row[]} */ ([]));
  const next = signal(/** @type {string | null} */ (null));
  const facets = signal(/** @type {any} */ (null));
  const loading = signal(true);
  const trouble = signal("");
  const cursor = signal(-1);
  const selected = signal(/** @type {ReadonlySet<string>} */ (new Set()));
  /** The filter is selected, not the sessions that it finds now. */
  const whole = signal(false);
  let anchor = 0;
  /** New sessions that wait for the list to be at its top. */
  const fresh = signal(0);
  /** The top row in sight, in steps of a few rows: between them nothing is drawn again. */
  const topRow = signal(0);
  const height = signal(800);
  const text = signal(print(fromUrl(place.peek().query)));
  const shapes = shapeSource();
  const facetsNow = memo(facetsView);
  /** @type {HTMLElement | null} */
  let scroller = null;
  let asked = 0;
  let reading = false;

  const filters = memo((/** @type {string} */ search) => fromUrl(new URLSearchParams(search)));
  const current = () => filters(place.value.query.toString());
  const sort = () => (place.value.query.get("sort") === "changed" ? "changed" : "created");
  const rowHeight = () => (innerWidth < 700 ? 61 : 34);

  async function load() {
    const mine = ++asked;
    const wanted = toApi(current());
    loading.value = true;
    try {
      const [page, counts] = await Promise.all([get("/sessions", { ...wanted, sort: sort(), limit: PAGE }), get("/sessions/facets", { ...wanted, level: "cached" })]);
      if (mine !== asked) return;
      rows.value = page.items;
      next.value = page.next;
      facets.value = counts;
      fresh.value = 0;
      trouble.value = "";
      cursor.value = Math.min(cursor.peek(), page.items.length - 1);
    } catch (error) {
      if (mine === asked) trouble.value = /** @type {Error} */ (error).message;
    } finally {
      if (mine === asked) loading.value = false;
    }
  }

  async function more() {
    if (reading || !next.peek()) return;
    reading = true;
    const mine = asked;
    try {
      const page = await get("/sessions", { ...toApi(current()), sort: sort(), limit: PAGE, after: next.peek() });
      if (mine !== asked) return;
      rows.value = [...rows.peek(), ...page.items];
      next.value = page.next;
    } finally {
      reading = false;
    }
  }

  const stopLoading = effect(() => {
    current();
    sort();
    load();
  });

  // What other writers did: rows in sight are read again together, new sessions wait until the list is at its top.
  /** @type {Set<string>} */
  const touched = new Set();
  let timer = 0;
  const stopStream = onDigest((digest) => {
    const { created = 0 } = digest.counts_by_kind;
    if (created && (scroller?.scrollTop ?? 0) < 10) touched.add("");
    else fresh.value += created;
    const changes = new Map(digest.touched.map((change) => [change.id, change]));
    const known = rows.peek().filter((row) => changes.has(row.session_id));
    for (const row of known) touched.add(row.session_id);
    if (known.length) rows.value = rows.peek().map((row) => changed(row, changes.get(row.session_id)));
    if (touched.size || digest.more) timer ||= setTimeout(refresh, SETTLE);
  });

  /** A row as its newest event left it; its other cells follow with the next reading. @param {Row} row @param {import("./stream.js").Touched | undefined} change @returns {Row} */
  function changed(row, change) {
    if (!change) return row;
    const { seq, kind, name, state, owner } = change;
    return { ...row, state, orphaned: row.orphaned && owner === row.owner?.worker, entries: seq || row.entries, owner: owner === null ? null : { ...row.owner, worker: owner }, newest: kind === "checkpoint" ? { ...row.newest, seq, name, kind } : row.newest };
  }

  async function refresh() {
    timer = 0;
    const ids = new Set(touched);
    touched.clear();
    const page = await get("/sessions", { ...toApi(current()), sort: sort(), limit: PAGE });
    const known = new Map(page.items.map((/** @type {Row} */ row) => [row.session_id, row]));
    if (ids.has("") && rows.peek().length <= PAGE) {
      rows.value = page.items;
      next.value = page.next;
    } else rows.value = rows.peek().map((row) => known.get(row.session_id) ?? row);
    shapes.want(visible().rows.map((row) => row.session_id).filter((id) => ids.has(id)), true);
    facets.value = await get("/sessions/facets", { ...toApi(current()), level: "cached" });
  }

  const visible = () => {
    const first = Math.max(0, topRow.value - AHEAD);
    const last = Math.min(rows.value.length, topRow.value + STRIDE + Math.ceil(height.value / rowHeight()) + AHEAD);
    return { first, last, rows: rows.value.slice(first, last) };
  };
  const stopShapes = effect(() => {
    const seen = visible();
    shapes.want(seen.rows.map((row) => row.session_id));
    if (seen.last > rows.value.length - PAGE / 2) more();
  });

  /** @param {Record<string, string | string[] | null>} changes */
  function narrow(changes) {
    go(withQuery(changes));
    text.value = print(fromUrl(place.peek().query));
    selectNone();
    if (scroller) scroller.scrollTop = 0;
  }
  /** Add a filter, or take it away. @param {string} name @param {string} value */
  function toggle(name, value) {
    const values = current()[name] ?? [];
    narrow({ [name]: values.includes(value) ? values.filter((v) => v !== value) : [...values, value] });
  }
  let typing = 0;
  /** @param {Event} event */
  function typed(event) {
    text.value = /** @type {HTMLInputElement} */ (event.target).value;
    clearTimeout(typing);
    typing = setTimeout(() => {
      const wanted = parse(text.peek());
      replace(withQuery({ ...Object.fromEntries([...Object.values(TOKENS), "text"].map((name) => [name, wanted[name] ?? null])) }));
    }, 180);
  }

  /** @param {number} by */
  function move(by) {
    cursor.value = Math.max(0, Math.min(rows.peek().length - 1, cursor.peek() + by));
    if (!scroller) return;
    const top = cursor.peek() * rowHeight();
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + 2 * rowHeight() > scroller.scrollTop + scroller.clientHeight - 40) scroller.scrollTop = top - scroller.clientHeight + 2 * rowHeight() + 40;
  }
  /** @param {number} index @param {boolean} [range] from the last one */
  function select(index, range = false) {
    const next = new Set(whole.peek() ? [] : selected.peek());
    whole.value = false;
    const ids = rows.peek().map((row) => row.session_id);
    if (range) for (const id of ids.slice(Math.min(anchor, index), Math.max(anchor, index) + 1)) next.add(id);
    else if (!next.delete(ids[index])) next.add(ids[index]);
    anchor = index;
    selected.value = next;
  }
  function selectLoaded() {
    const all = rows.peek().map((row) => row.session_id);
    const every = whole.peek() || selected.peek().size >= all.length;
    whole.value = false;
    selected.value = new Set(every ? [] : all);
  }
  function selectNone() {
    selected.value = new Set();
    whole.value = false;
  }
  /** @returns {import("./bulk.js").Choice} */
  function choice() {
    const { sessions: total = 0 } = facets.value ?? {};
    if (whole.value) return { filter: Object.fromEntries(Object.entries(toApi(current())).filter(([, value]) => value !== undefined && value.length !== 0)), of: total, states: null };
    /** @type {Record<string, number>} */
    const states = {};
    for (const row of rows.value) if (selected.value.has(row.session_id)) states[row.state] = (states[row.state] ?? 0) + 1;
    return { ids: [...selected.value], of: selected.value.size, states };
  }
  const open = () => {
    const row = rows.peek()[cursor.peek()];
    if (row) go(sessionUrl(row.session_id));
  };

  const shortcuts = () => [
    { keys: ["j", "ArrowDown"], text: "next", run: () => move(1) },
    { keys: ["k", "ArrowUp"], text: "previous", run: () => move(-1) },
    { keys: ["Enter"], text: "open", run: open },
    { keys: ["x"], text: "select", run: () => cursor.peek() >= 0 && select(cursor.peek()) },
    { keys: ["X"], text: "select up to here", run: () => cursor.peek() >= 0 && select(cursor.peek(), true) },
    ...(selected.peek().size || whole.peek() ? [{ keys: ["Escape"], text: "select none", run: selectNone }] : []),
    { keys: ["!"], text: "failed", run: () => toggle("state", "failed") },
    { keys: ["o"], text: "orphaned", run: () => toggle("state", "orphaned") },
    { keys: ["0"], text: "clear filters", run: () => narrow(Object.fromEntries([...Object.values(TOKENS), "text"].map((name) => [name, null]))) },
    { keys: ["/"], text: "search here", run: () => document.querySelector(/** @type {"input"} */ (".search input"))?.focus() },
    { keys: ["y"], text: "copy as CLI", run: () => copyText(commandHere(), "the command") },
  ].map((s) => ({ where: "List", ...s }));

  const commandHere = () => cli(["ls", ...toCli(current()), ...(sort() === "changed" ? ["--sort", "changed"] : [])]);

  /** @param {Row} row @param {number} index */
  function rowView(row, index) {
    const { session_id: id, state, orphaned, agent_type: agent, user_id: user, owner, entries, newest, forked_from: fork } = row;
    const shape = shapes.of(id);
    return html`<tr class=${index === cursor.value ? "row selected" : "row"} @click=${(/** @type {MouseEvent} */ e) => rowClick(e, id, index)}>
      <td class="c-check"><input type="checkbox" aria-label=${`Select ${plain(id)}`} .checked=${whole.value || selected.value.has(id)} @click=${(/** @type {MouseEvent} */ e) => select(index, e.shiftKey)}></td>
      <td class="c-state">${stateWord(orphaned ? "orphaned" : state)}</td>
      <td class="c-id"><a href=${sessionUrl(id)}>${plain(id)}</a>${fork ? html`<span class="label">${icon("fork")} fork</span>` : null}</td>
      <td class="c-agent">${plain(agent)}</td><td class="c-user">${plain(user)}</td>
      <td class="c-at mono">${plain(newest?.name ?? "")}</td>
      <td class="c-tape">${shape ? tapeOf(shape) : null}</td>
      <td class="c-number">${count(entries)}</td>
      <td class="c-number c-stored">${shape ? `${shape.from_seq > 1 ? "over " : ""}${size(shape.stored_bytes)}` : ""}</td>
      <td class="c-owner">${owner?.worker ? (orphaned ? html`<s>${ownerName(owner.worker, shape)}</s>` : ownerName(owner.worker, shape)) : ""}</td>
      <td class="c-number">${short(now.value - Date.parse(row.last_heartbeat) / 1000)}</td>
      <td class="c-number c-age">${short(now.value - Date.parse(row.created_at) / 1000)}</td></tr>`;
  }
  /** @param {MouseEvent} event @param {string} id @param {number} index */
  function rowClick(event, id, index) {
    if (/** @type {Element} */ (event.target).closest("a, input")) return;
    cursor.value = index;
    go(sessionUrl(id));
  }

  function table() {
    const { first, last, rows: seen } = visible();
    return html`<div class="table-scroll" tabindex="-1" ref=${watch} @scroll=${(/** @type {Event} */ e) => measure(/** @type {HTMLElement} */ (e.currentTarget))}>
      <table class="sessions"><thead><tr><th class="c-check"><input type="checkbox" aria-label="Select all that are loaded" .checked=${whole.value || (rows.value.length > 0 && selected.value.size >= rows.value.length)} @click=${selectLoaded}></th><th class="c-state">State</th><th class="c-id">Session</th><th class="c-agent">Agent</th><th class="c-user">User</th><th class="c-at">At</th><th class="c-tape">Tape</th><th class="c-number">Entries</th><th class="c-number c-stored">Stored</th><th class="c-owner">Owner</th>
        <th class="c-number"><button class="sort" aria-pressed=${String(sort() === "changed")} @click=${() => narrow({ sort: "changed" })}>Heartbeat${sort() === "changed" ? " ↓" : ""}</button></th>
        <th class="c-number c-age"><button class="sort" aria-pressed=${String(sort() === "created")} @click=${() => narrow({ sort: null })}>Age${sort() === "created" ? " ↓" : ""}</button></th></tr></thead>
        <tbody><tr class="spacer" aria-hidden="true" .style=${{ height: `${first * rowHeight()}px` }}></tr>
        ${each(seen, (row) => row.session_id, (row, i) => rowView(row, first + i))}
        <tr class="spacer" aria-hidden="true" .style=${{ height: `${(rows.value.length - last) * rowHeight()}px` }}></tr></tbody></table></div>`;
  }
  /** @param {HTMLElement} element */
  function measure(element) {
    topRow.value = Math.floor(element.scrollTop / rowHeight() / STRIDE) * STRIDE;
    height.value = element.clientHeight;
  }
  /** @param {HTMLElement} element */
  function watch(element) {
    scroller = element;
    new ResizeObserver(() => measure(element)).observe(element);
    measure(element);
  }

  const filtered = () => Object.values(current()).reduce((sum, values) => sum + values.length, 0);
  /** On a phone there is no room for them beside the list. */
  const showFacets = () => ask({ title: "Filters", body: () => html`<p class="soft" role="status">${facets.value ? many(facets.value.sessions, "session") : ""}</p>${facets.value ? html`<div class="facets sheet">${facetsView(facets.value, current(), toggle)}</div>` : null}`, cancel: "Show the list" });

  /** Nothing matches: say which token is in the way. */
  function noMatch() {
    const values = Object.entries(current()).flatMap(([name, list]) => list.map((value) => ({ name, value })));
    return html`<div class="no-match"><h2>${values.length ? "No session matches." : "No session in this namespace yet."}</h2>${values.length ? html`<p>Drop a filter:</p><p>${values.map(({ name, value }) => html`<button @click=${() => toggle(name, value)}>${name}:${plain(value)} ✕</button> `)}</p>` : html`<p><a href="/">Now</a> shows three ways to begin.</p>`}</div>`;
  }

  function view() {
    const total = facets.value?.sessions;
    return html`<h1 class="hidden">Sessions</h1><div class="views">${savedViews(current(), (saved) => narrow(Object.fromEntries([...Object.values(TOKENS), "text"].map((name) => [name, saved[name] ?? null]))))}
        <span class="push"></span><button class="filters-button" @click=${showFacets}>Filters${filtered() ? html` <span class="number">${filtered()}</span>` : null}</button>${copyHere({ cli: commandHere(), curl: curl(apiUrl("/sessions", { ...toApi(current()), sort: sort() })) })}</div>
      <div class="list-columns"><aside class="facets" aria-label="Filters">${facets.value ? facetsNow(facets.value, current(), toggle) : null}</aside>
      <div><div class="search">${icon("search")}<input type="search" aria-label="Search sessions" placeholder="id, user, text, or state: agent: user: label: before: after:" .value=${text.value} @input=${typed}><kbd aria-hidden="true">/</kbd></div>
      <section class="panel list"><div class="list-head"><b aria-live="polite">${total === undefined ? "" : many(total, "session")}</b>
        ${[...misfits(current()), trouble.value].filter(Boolean).map((text) => html`<span class="s-failed" role="alert">${plain(text)}</span>`)}
        ${fresh.value ? html`<button class="quiet" @click=${load}>${count(fresh.value)} new ↑</button>` : null}
        ${facets.value && total ? histogram(facets.value.created, facets.value.looked_at, (from, to) => narrow({ after: from, before: to })) : null}</div>
        ${!rows.value.length && loading.value ? html`<div class="grey-bars" aria-hidden="true"><i></i><i></i><i></i></div>` : rows.value.length ? table() : noMatch()}</section></div></div>
      ${bulkBar(choice(), { total: total ?? 0, whole: whole.value, all: () => (whole.value = true), none: selectNone, done: load })}`;
  }

  return { title: "Sessions", view, shortcuts, dispose: () => { stopLoading(); stopStream(); stopShapes(); shapes.stop(); clearTimeout(timer); } };
}
