// @ts-check
/** One session: its tape, its log, and the state at the playhead. */
import * as actions from "./actions.js";
import { Failure, apiUrl, get, missing, sessionPath } from "./api.js";
import { now } from "./clock.js";
import { cli, copyButtons, copyText, curl } from "./copy.js";
import { question } from "./dialog.js";
import { CHECKPOINTS, kindText, story, title } from "./entries.js";
import { factsView } from "./facts.js";
import { clock, count, many, plain, span } from "./format.js";
import { icon, stateWord } from "./icons.js";
import { layout } from "./layout.js";
import * as logList from "./log.js";
import { longTape } from "./long_tape.js";
import { logSource } from "./log_source.js";
import { outlookView } from "./outlook.js";
import { go, place, replace, sessionUrl, withQuery } from "./places.js";
import { statePane } from "./state_pane.js";
import { connected, onEntry } from "./stream.js";
import { trailOf, trailTable, verdict } from "./trail.js";
import { tape } from "./tape.js";
import { html, memo, signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */

// Entries on a tape that is a window of a longer log.
const WINDOW = 120;

/** @param {string} id */
export function sessionScreen(id) {
  const path = sessionPath(id);
  const source = logSource(id);
  const audit = trailOf(id);
  const session = signal(/** @type {any} */ (null));
  const outlook = signal(/** @type {import("./outlook.js").Outlook | null} */ (null));
  const overview = signal(/** @type {import("./long_tape.js").Overview | null} */ (null));
  const failure = signal(/** @type {Failure | null} */ (null));
  const selected = signal(0);
  const following = signal(true);
  const checkpoints = signal(place.peek().query.get("log") === "checkpoints");
  const width = signal(1300);
  const scroll = signal({ top: 0, height: 600 });
  /** @type {HTMLElement | null} */
  let rowsElement = null;

  const query = () => place.value.query;
  const tab = () => query().get("tab") ?? (innerWidth < 700 ? "diff" : "state");
  const even = () => query().get("scale") === "even";
  const seqA = () => Number(query().get("from")) || 0;

  const storyMemo = () => memo((/** @type {readonly Header[]} */ entries, /** @type {boolean} */ orphaned, /** @type {string | null} */ silent) => story(entries, { orphaned, silentSince: silent }));
  const [wholeStory, windowStory] = [storyMemo(), storyMemo()];
  const storyHere = () => wholeStory(entries(), orphaned(), silent());
  /** The story of the entries on the tape, which may be a window of the log. @param {readonly Header[]} list */
  const storyOn = (list) => (list === entries() ? storyHere() : windowStory(list, orphaned(), silent()));
  const rowsOf = memo(logList.rows);
  const marksOf = memo((/** @type {import("./entries.js").Story} */ s, /** @type {any} */ view) => layout(s, JSON.parse(view)));

  /** The entries on the tape: all, or a window that moves when the playhead comes near its end. */
  let from = 0;
  const windowOf = memo((/** @type {readonly Header[]} */ entries, /** @type {number} */ start) => entries.slice(start, start + WINDOW));
  /** @param {readonly Header[]} entries @param {number} index */
  function windowed(entries, index) {
    if (entries.length * 12 <= 2000) return entries;
    if (index < from + 8 || index > from + WINDOW - 8) from = Math.max(0, Math.min(entries.length - WINDOW, index - WINDOW / 2));
    return windowOf(entries, from);
  }

  const entries = () => source.entries.value;
  const indexOf = memo((/** @type {readonly Header[]} */ list, /** @type {number} */ seq) => {
    const index = list.findIndex((entry) => entry.seq >= seq);
    return index < 0 ? list.length - 1 : index;
  });
  const index = () => indexOf(entries(), selected.value);
  const current = () => entries()[index()];

  /** The entry whose data the diff starts from: A, or the data before. @param {Header} entry */
  function baseOf(entry) {
    const a = seqA();
    const list = entries();
    if (a) return list.find(({ seq }) => seq === a)?.data_seq ?? a;
    const dataSeq = entry.data_seq ?? 0;
    const before = list[indexOf(list, dataSeq) - 1];
    return list.length && list[indexOf(list, dataSeq)].seq === dataSeq ? (before?.data_seq ?? 0) : 0;
  }

  async function load() {
    try {
      const at = place.peek().query.get("at");
      const seq = at && /^\d+$/.test(at) ? Number(at) : at ? Number((await get(`${path}/checkpoints/${encodeURIComponent(at)}`)).id.split(":").pop()) : 0;
      const [value] = await Promise.all([get(path), source.jump(seq || undefined)]);
      session.value = value;
      const list = source.entries.peek();
      selected.value = seq || list[list.length - 1].seq;
      following.value = selected.peek() === list[list.length - 1].seq && !at;
      failure.value = null;
      loadOutlook();
      loadOverview();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      // A deleted session still has its trail; otherwise the id may be the beginning of another one.
      if (error.status === 404) await audit.load();
      if (error.status === 404 && !audit.trail.peek() && (await resolved())) return;
      failure.value = error;
    }
  }

  /** A unique beginning of an id becomes the whole id. */
  async function resolved() {
    const { items } = await get("/sessions", { prefix: id, limit: 2 });
    if (items.length !== 1 || items[0].session_id === id) return false;
    replace(sessionUrl(items[0].session_id) + location.search);
    return true;
  }

  /** The whole log in columns, once it is longer than a tape can be. */
  const loadOverview = () => source.total.peek() * 12 > 2000 && get(`${path}/buckets`, { n: 240 }).then((value) => (overview.value = value));
  const loadOutlook = () => get(`${path}/outlook`).then((value) => (outlook.value = value)).catch(() => (outlook.value = null));

  /** What this page or another writer changed. */
  async function changed() {
    await source.later();
    session.value = await get(path);
    loadOutlook();
    if (source.total.peek() - (overview.peek()?.entries ?? 0) > 50) loadOverview();
    const list = source.entries.peek();
    if (following.peek()) select(list.length - 1);
  }

  /** @param {number} i */
  function select(i) {
    const list = source.entries.peek();
    const bounded = Math.max(0, Math.min(list.length - 1, i));
    const { seq } = list[bounded];
    following.value = bounded === list.length - 1;
    if (i < 20 && list[0].seq > 1) source.earlier();
    if (seq === selected.peek()) return;
    selected.value = seq;
    if (rowsElement) logList.reveal(rowsElement, rowsOf(storyHere(), checkpoints.peek()), bounded);
    rest(() => replace(withQuery({ at: following.peek() ? null : String(seq) })));
  }
  let restTimer = 0;
  /** Safari and Chromium refuse more than 100 changes of the URL in 10 s. @param {() => void} run */
  function rest(run) {
    clearTimeout(restTimer);
    restTimer = setTimeout(run, 120);
  }

  const orphaned = () => Boolean(session.value?.orphaned);
  const silent = () => (orphaned() ? (outlook.value?.orphaned_since ?? null) : null);

  const stopStream = onEntry({ session_id: id }, () => changed());
  load();

  /** @returns {import("./actions.js").Subject} */
  const subject = () => ({ id, state: session.value.state, orphaned: orphaned(), version: session.value.version, owner: session.value.owner, outlook: outlook.value, entries: entries(), live: connected.value, changed });
  /** The entry with data that the playhead stands at or after. */
  const target = () => entries().find(({ seq }) => seq === current().data_seq) ?? null;

  /** @param {(at: Header) => void} act */
  const withTarget = (act) => {
    const at = target();
    if (at) act(at);
  };
  const verbs = {
    rollback: () => withTarget((at) => actions.rollback(subject(), at)),
    fork: () => withTarget((at) => actions.fork(subject(), at)),
    pause: () => (session.peek().state === "paused" ? actions.now(subject(), "resume", "pause") : actions.now(subject(), "pause", "resume")),
    pin: () => withTarget(async (at) => {
      await actions.now(subject(), at.pinned ? "unpin" : "pin", at.pinned ? "pin" : "unpin", { ref: at.seq });
      source.again();
    }),
  };
  const rollbackWhy = () => (target()?.seq === entries()[entries().length - 1]?.data_seq ? "the session is at this state" : !target() ? "no data here" : target()?.thinned ? "thinned: its data is gone" : actions.why(subject(), "rollback"));

  /** @param {number} direction */
  function stepCheckpoint(direction) {
    const list = entries();
    let i = index() + direction;
    while (i > 0 && i < list.length - 1 && !CHECKPOINTS.has(list[i].kind)) i += direction;
    select(i);
  }
  const setTab = (/** @type {string} */ name) => replace(withQuery({ tab: name === "state" ? (innerWidth < 700 ? name : null) : name }));
  const setA = () => replace(withQuery({ from: seqA() === selected.peek() || seqA() ? null : String(selected.peek()) }));
  const compareUrl = () => `/compare?a=${encodeURIComponent(`${id}@${baseOf(current()) || current().data_seq || "latest"}`)}&b=${encodeURIComponent(refAt())}`;
  const refAt = () => `${id}@${current()?.data_seq || "latest"}`;
  const commandHere = () => (tab() === "diff" && baseOf(current()) ? cli(["diff", `${id}@${baseOf(current())}`, `@${current().data_seq}`]) : cli(["show", refAt()]));
  const requestHere = () => curl(tab() === "diff" && baseOf(current()) ? apiUrl(`${path}/diff`, { a: baseOf(current()), b: current().data_seq }) : apiUrl(`${path}/checkpoints/${current()?.data_seq || "latest"}`));

  const pane = statePane({ id, entries, index, current, target, baseOf, storyHere, seqA, setA, tab, setTab, compareUrl });

  const shortcuts = () => (entries().length && session.value ? [
    { keys: ["[", "ArrowLeft"], text: "entry before", run: () => select(index() - 1) },
    { keys: ["]", "ArrowRight"], text: "next entry", run: () => select(index() + 1) },
    { keys: ["{"], text: "checkpoint before", run: () => stepCheckpoint(-1) },
    { keys: ["}"], text: "next checkpoint", run: () => stepCheckpoint(1) },
    { keys: ["Home"], text: "first entry", run: () => jump(1) },
    { keys: ["End"], text: "newest entry, and follow", run: () => toEnd() },
    { keys: ["a"], text: "A here, or clear it", run: setA },
    { keys: ["d"], text: "compare with A, or with what was before", run: () => go(compareUrl()) },
    ...["state", "diff", "messages", "raw"].map((name, i) => ({ keys: [String(i + 1)], text: name, run: () => setTab(name) })),
    { keys: ["e"], text: "fold what is as before", run: () => (pane.fold.value = !pane.fold.peek()) },
    { keys: ["z"], text: "scale: time or even", run: () => replace(withQuery({ scale: even() ? null : "even" })) },
    { keys: ["r"], text: "roll back", run: () => !rollbackWhy() && verbs.rollback() },
    { keys: ["f"], text: "fork", run: () => !actions.why(subject(), "fork") && verbs.fork() },
    { keys: ["p"], text: "pause or resume", run: () => !actions.why(subject(), session.peek().state === "paused" ? "resume" : "pause") && verbs.pause() },
    { keys: ["."], text: "pin or unpin", run: () => !missing("write") && verbs.pin() },
    { keys: ["y"], text: "copy as CLI", run: () => copyText(commandHere(), "the command") },
  ].map((s) => ({ where: "Tape", ...s })) : []);

  /** Go to an entry, loaded or not. @param {number} seq */
  async function jump(seq) {
    const known = source.entries.peek();
    if (seq < known[0].seq || seq > known[known.length - 1].seq) await source.jump(seq);
    select(indexOf(source.entries.peek(), seq));
  }
  async function toEnd() {
    const last = source.entries.peek()[source.entries.peek().length - 1].seq;
    if (last < source.total.peek()) await source.jump();
    select(source.entries.peek().length - 1);
  }

  function headline() {
    const { state, agent_type: agent, user_id: user, labels } = session.value;
    const { clips, rollbacks } = storyHere();
    const word = orphaned() ? "orphaned" : state;
    const list = entries();
    const all = overview.value;
    const whole = list.length === source.total.value;
    const ends = all && !whole ? [all.items[0].start, all.items[all.items.length - 1].end] : [list[0].at, list[list.length - 1].at];
    const duration = (Date.parse(ends[1]) - Date.parse(ends[0])) / 1000;
    const turned = (/** @type {string} */ kind) => all?.turns.filter((turn) => turn.kind === kind).length ?? 0;
    const owners = new Set(all && !whole ? all.items.flatMap(({ owner }) => owner ?? []) : clips.map(({ worker }) => worker)).size;
    const rolledBack = whole ? rollbacks.length : turned("rollback");
    const saved = list.filter(({ kind }) => CHECKPOINTS.has(kind)).length;
    const died = whole ? clips.filter(({ end }) => end === "died").length : turned("claimed");
    const forks = list.reduce((sum, { forks }) => sum + (forks?.length ?? 0), 0);
    const { owner } = session.value;
    const [open] = outlook.value?.steps.unknown ?? [];
    return html`<div class="headline">
      <a class="icon-button" href="/sessions" aria-label="Sessions">${icon("back")}</a>
      <h1>${plain(id)}</h1>${stateWord(word, true)}
      <span class="soft">${plain(agent)}${user ? ` · ${plain(user)}` : ""}</span>
      ${Object.entries(labels ?? {}).map(([name, value]) => html`<span class="label">${plain(`${name}=${value}`)}</span>`)}
      <span class="push"></span>${copyButtons({ cli: commandHere(), curl: requestHere() })}
      ${actionButton("Fork here", "f", actions.why(subject(), "fork"), verbs.fork)}
      ${actionButton("Roll back here", "r", rollbackWhy(), verbs.rollback)}
      ${open ? actionButton(`Decide on ${plain(open.name)}…`, "", missing("write") || (connected.value ? "" : "no connection to the server"), () => actions.decide(subject(), open), "main") : null}
      ${state === "failed" ? actionButton("Recover…", "", actions.why(subject(), "recover"), () => actions.recover(subject()), "main") : null}
    </div>
    <p class="sentence"><b>${whole ? many(saved, "checkpoint") : many(source.total.value, "entry", "entries")}</b>${owners ? html` by <b>${many(owners, "owner")}</b>` : null} in ${span(duration)}${died ? html`, taken over <b>${died === 1 ? "once" : died === 2 ? "twice" : `${died} times`}</b> after a worker died` : null}${rolledBack ? html`, <b>rolled back ${rolledBack === 1 ? "once" : `${rolledBack} times`}</b>` : null}${forks ? html`, <b>${many(forks, "fork")}</b>` : null}.
      ${orphaned() ? html`<span class="s-orphaned">No worker has held it since ${clock(Date.parse(silent() ?? list[list.length - 1].at) / 1000)}.</span>` : owner ? html`Held by <b>${plain(owner.worker)}</b>, last sign of life ${span(Math.max(0, now.value - Date.parse(session.value.last_heartbeat) / 1000))} ago.` : null}</p>`;
  }

  function tapePanel() {
    const s = storyOn(windowed(entries(), index()));
    const entry = current();
    const here = s.entries.indexOf(entry);
    const a = s.entries.findIndex(({ seq }) => seq === seqA());
    const { state } = session.value;
    const moving = orphaned() || state === "paused";
    const marks = marksOf(s, JSON.stringify({
      width: width.value, even: even(), touch: width.value < 640, state, orphaned: orphaned(), selected: here,
      now: moving ? Math.floor(now.value) : 0, ...(s.entries[0].seq > 1 && { first: Date.parse(session.value.created_at) / 1000 }),
    }));
    return html`<section class="panel tape-panel" aria-label="Tape">
      <div class="tape-head">
        <span class="transport"><button class="icon-button" aria-label="First entry" @click=${() => shortcuts().find(({ keys }) => keys[0] === "Home")?.run()}>${icon("first")}</button>
        <button class="icon-button" aria-label="Entry before" @click=${() => select(index() - 1)}>${icon("previous")}</button>
        <button class="icon-button" aria-label="Next entry" @click=${() => select(index() + 1)}>${icon("next")}</button>
        <button class="icon-button" aria-label="Newest entry" @click=${toEnd}>${icon("last")}</button></span>
        <span class="here"><b class="mono">${count(entry.seq)} ${plain(title(entry))}</b> <span class="soft">${kindText(entry.kind)}${entry.step?.key ? ` · key=${plain(entry.step.key)}` : ""} · ${clock(Date.parse(entry.at) / 1000)} · +${span((Date.parse(entry.at) - Date.parse(session.value.created_at)) / 1000)}</span></span>
        ${selected.value < source.total.value && !following.value ? html`<button @click=${toEnd}>${count(source.total.value - selected.value)} newer →</button>` : null}
        <span class="legend push"><span><i class="k-notch"></i>checkpoint, taller = more bytes</span><span><i class="k-diamond"></i>effect</span><span><i class="k-hatch"></i>left behind</span></span>
        <span class="segments"><button aria-pressed=${String(!even())} @click=${() => replace(withQuery({ scale: null }))}>time, silence folded</button><button aria-pressed=${String(even())} @click=${() => replace(withQuery({ scale: "even" }))}>even</button></span>
      </div>
      ${overview.value ? longTape({ overview: overview.value, width: width.value, from: s.entries[0].seq, to: s.entries[s.entries.length - 1].seq, seq: entry.seq, onjump: jump }) : null}
      <div ref=${measure}>${tape({ marks, story: s, index: here, a, onselect: (i) => select(entries().indexOf(s.entries[i])), label: `Entries of ${plain(id)}` })}</div>
    </section>`;
  }

  /** @param {HTMLElement} element */
  function measure(element) {
    const watch = () => (width.value = Math.max(300, Math.floor(element.clientWidth)));
    new ResizeObserver(watch).observe(element);
    watch();
  }
  /** @param {HTMLElement} element */
  function rowsRef(element) {
    rowsElement = element;
    new ResizeObserver(() => (scroll.value = logList.box(element))).observe(element);
    logList.reveal(element, rowsOf(storyHere(), checkpoints.value), index());
    scroll.value = logList.box(element);
  }

  function side() {
    const s = subject();
    const { state } = s;
    const at = target();
    return html`<aside class="side"><section class="panel pad" aria-label="Outlook and actions">
      ${outlook.value ? outlookView(outlook.value, orphaned()) : null}
      <div class="actions">
        ${actionButton("Roll back", "r", rollbackWhy(), verbs.rollback)}${actionButton("Fork", "f", actions.why(s, "fork"), verbs.fork)}
        ${state === "paused" ? actionButton("Resume", "p", actions.why(s, "resume"), verbs.pause) : state === "failed" ? actionButton("Recover…", "", actions.why(s, "recover"), () => actions.recover(s)) : actionButton("Pause", "p", actions.why(s, "pause"), verbs.pause)}
        ${actionButton(at?.pinned ? "Unpin" : "Pin", ".", at ? actions.why(s, "pin") : "no data here", verbs.pin)}
        ${(outlook.value?.steps.unknown ?? []).map((step) => actionButton(`Decide on ${plain(step.name)}…`, "", missing("write"), () => actions.decide(s, step), "main"))}
        ${s.owner && !orphaned() ? actionButton("Release…", "", actions.why(s, "release"), () => actions.release(s)) : null}
        ${state === "active" || state === "paused" ? actionButton("Cancel…", "", actions.why(s, "cancel"), () => actions.cancel(s)) : null}
        <a class="button" href=${apiUrl(`${path}/export`)} download=${`${id}.json`}>Export</a>
        ${actionButton("Delete…", "", actions.why(s, "delete"), () => actions.remove(s), "danger")}
      </div></section>
      ${factsView(session.value, entries(), source.total.value, source.sealed.value)}
      <section class="panel pad" aria-label="Audit">${audit.trail.value ? html`<p>${verdict(audit.trail.value)}</p>` : html`<button @click=${audit.load}>Verify the log</button>`}${audit.trouble.value ? html`<p class="trouble">${audit.trouble.value}</p>` : null}</section></aside>`;
  }

  function view() {
    if (failure.value) return missingView(id, failure.value, audit.trail.value);
    if (!session.value || !entries().length) return html`<div class="headline"><h1>${plain(id)}</h1></div><div class="panel tape-panel loading"></div>`;
    return html`${headline()}${tapePanel()}<div class="columns">
      ${logList.log({ story: storyHere(), rows: rowsOf(storyHere(), checkpoints.value), index: index(), scroll, total: source.total.value, checkpoints: checkpoints.value, onselect: select, onfilter: (only) => { checkpoints.value = only; replace(withQuery({ log: only ? "checkpoints" : null })); }, ref: rowsRef })}
      ${pane.view()}${side()}</div>`;
  }

  return { title: id, view, shortcuts, dispose: () => { pane.stop(); stopStream(); clearTimeout(restTimer); } };
}

/** A button that says why it cannot be used, instead of vanishing. @param {string} text @param {string} key @param {string} why @param {() => void} run @param {string} [look] */
export const actionButton = (text, key, why, run, look = "") => html`<button class=${look} disabled=${Boolean(why)} title=${why || null} aria-label=${why ? `${text}: ${why}` : null} @click=${run}>${text}${why.startsWith("needs scope") ? html`<span class="needs">${why}</span>` : key ? html`<kbd aria-hidden="true">${key}</kbd>` : null}</button>`;

/** @param {string} id @param {Failure} failure @param {import("./trail.js").Trail | null} trail */
const missingView = (id, failure, trail) => trail
  ? html`<section class="panel pad missing"><h1>${plain(id)} was deleted</h1><p>Its data cannot be read any more; this is what happened to it.</p>${trailTable(trail)}</section>`
  : failure.status === 404
  ? html`<section class="panel pad missing"><h1>There is no session ${plain(id)} here</h1><p>It may have been deleted or purged, be in another namespace, or the id may be incomplete.</p><p><a href=${`/sessions?text=${encodeURIComponent(id)}`}>Search for it</a> · <code>${cli(["audit", id])}</code> shows what happened to a deleted one.</p></section>`
  : html`<section class="panel pad missing"><h1>${plain(id)} cannot be shown</h1><p>${failure.message}</p></section>`;
