// @ts-check
/** One session: its tape, its log, and the state at the playhead. */
import * as actions from "./actions.js";
import { Failure, apiUrl, get, missing, sessionPath } from "./api.js";
import { now } from "./clock.js";
import { cli, copyButtons, copyText, curl } from "./copy.js";
import { question } from "./dialog.js";
import { CHECKPOINTS, kindText, story, title } from "./entries.js";
import { factsView } from "./facts.js";
import { clock, count, many, plain, size, span } from "./format.js";
import { happened } from "./happened.js";
import { icon, stateWord } from "./icons.js";
import { layout } from "./layout.js";
import * as logList from "./log.js";
import { longTape } from "./long_tape.js";
import { logSource } from "./log_source.js";
import { messageKey, messages } from "./messages.js";
import { operationRows, summary } from "./operations.js";
import { outlookView } from "./outlook.js";
import { go, place, replace, sessionUrl, withQuery } from "./places.js";
import { raw, rawLink } from "./raw.js";
import { LARGE, at, stateSource, withPart } from "./states.js";
import { connected, onEntry } from "./stream.js";
import { trailOf, trailTable, verdict } from "./trail.js";
import { tape } from "./tape.js";
import { toast } from "./toast.js";
import { tree, treeRows } from "./tree.js";
import { folded } from "./values.js";
import { effect, html, memo, signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */

// Entries on a tape that is a window of a longer log.
const WINDOW = 120;
// Milliseconds that the playhead rests before a state is asked for.
const REST = 40;

/**
 * A large state with one more part of it, and how many children of each container are still to be read.
 * @param {any} data @param {ReadonlyMap<string, number>} rests @param {string} path @param {import("./states.js").Part} part
 */
function parted(data, rests, path, part) {
  const left = new Map(rests).set(path, part.next === null ? 0 : part.size - part.next);
  return { data: withPart(data, path, part), rests: new Map([...left].filter(([, n]) => n)) };
}

/** @param {string} id */
export function sessionScreen(id) {
  const path = sessionPath(id);
  const source = logSource(id);
  const states = stateSource(id);
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
  const fold = signal(true);
  const toggled = signal(/** @type {ReadonlySet<string>} */ (new Set()));
  const shown = signal(/** @type {Shown | null} */ (null));
  /** Containers that were read on opening. @type {Set<string>} */
  const opened = new Set();
  /** @type {HTMLElement | null} */
  let rowsElement = null;
  /** @typedef {{seq: number, dataSeq: number, base: number, data: any, operations: import("./operations.js").Operation[], trouble: string, large: boolean, rests: ReadonlyMap<string, number>}} Shown `rests`: children of a container that were not read yet */

  const query = () => place.value.query;
  const tab = () => query().get("tab") ?? (innerWidth < 700 ? "diff" : "state");
  const even = () => query().get("scale") === "even";
  const seqA = () => Number(query().get("from")) || 0;

  const storyOf = memo((/** @type {readonly Header[]} */ entries, /** @type {boolean} */ orphaned, /** @type {string | null} */ silent) => story(entries, { orphaned, silentSince: silent }));
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
    if (rowsElement) logList.reveal(rowsElement, rowsOf(storyOf(list, orphaned(), silent()), checkpoints.peek()), bounded);
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

  // The state and the diff at the playhead, a moment after it rests.
  let asked = 0;
  const stopLoading = effect(() => {
    const entry = entries().length ? current() : null;
    if (!entry) return;
    const base = baseOf(entry);
    const dataSeq = entry.data_seq ?? 0;
    const was = shown.peek();
    if (was && was.dataSeq === dataSeq && was.base === base && !was.trouble) {
      if (was.seq !== entry.seq) shown.value = { ...was, seq: entry.seq };
      return;
    }
    const mine = ++asked;
    setTimeout(async () => {
      if (mine !== asked) return;
      const value = { seq: entry.seq, dataSeq, base, data: /** @type {any} */ ({}), operations: /** @type {any[]} */ ([]), trouble: "", large: (entries().find(({ seq }) => seq === dataSeq)?.state_bytes ?? 0) >= LARGE, rests: new Map() };
      try {
        if (value.large) Object.assign(value, parted({}, new Map(), "", await states.outline(dataSeq)));
        else if (dataSeq) value.data = await states.state(dataSeq);
        if (dataSeq && value.data === null) value.trouble = "This checkpoint was thinned: its data is gone, its entry stays.";
        else if (dataSeq && base && base !== dataSeq) value.operations = await states.diff(base, dataSeq, value.large);
        else if (dataSeq && !base) value.operations = Object.entries(value.data).map(([key, v]) => ({ op: /** @type {const} */ ("add"), path: `/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`, value: v }));
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        value.trouble = troubleText(error);
      }
      if (mine === asked) shown.value = value;
    }, REST);
  });

  /** @param {Failure} error */
  function troubleText(error) {
    if (error.code === "key_missing" || error.code === "wrong_key") return "Sealed: this server does not have the key, so it cannot read the data. The log above is whole.";
    if (error.code === "corrupt") return `Damaged: ${error.message}. \`saveslot doctor\` says which copy is sound.`;
    return error.message;
  }

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

  const shortcuts = () => (entries().length && session.value ? [
    { keys: ["[", "ArrowLeft"], text: "entry before", run: () => select(index() - 1) },
    { keys: ["]", "ArrowRight"], text: "next entry", run: () => select(index() + 1) },
    { keys: ["{"], text: "checkpoint before", run: () => stepCheckpoint(-1) },
    { keys: ["}"], text: "next checkpoint", run: () => stepCheckpoint(1) },
    { keys: ["Home"], text: "first entry", run: () => jump(1) },
    { keys: ["End"], text: "newest entry, and follow", run: () => toEnd() },
    { keys: ["a"], text: "A here, or clear it", run: setA },
    { keys: ["d"], text: "compare with A, or with what was before", run: () => go(compareUrl()) },
    { keys: ["1", "2", "3", "4"], text: "state, diff, messages, raw", run: () => {} },
    { keys: ["e"], text: "fold what is as before", run: () => (fold.value = !fold.peek()) },
    { keys: ["z"], text: "scale: time or even", run: () => replace(withQuery({ scale: even() ? null : "even" })) },
    { keys: ["r"], text: "roll back", run: () => !rollbackWhy() && verbs.rollback() },
    { keys: ["f"], text: "fork", run: () => !actions.why(subject(), "fork") && verbs.fork() },
    { keys: ["p"], text: "pause or resume", run: () => !actions.why(subject(), session.peek().state === "paused" ? "resume" : "pause") && verbs.pause() },
    { keys: ["."], text: "pin or unpin", run: () => !missing("write") && verbs.pin() },
    { keys: ["y"], text: "copy as CLI", run: () => copyText(commandHere(), "the command") },
  ].flatMap((shortcut) => (shortcut.keys[0] === "1" ? ["state", "diff", "messages", "raw"].map((name, i) => ({ keys: [String(i + 1)], text: name, run: () => setTab(name) })) : [shortcut])).map((s) => ({ where: "Tape", ...s })) : []);

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
    const { clips, rollbacks } = storyOf(entries(), orphaned(), silent());
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
    const s = storyOf(windowed(entries(), index()), orphaned(), silent());
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
    logList.reveal(element, rowsOf(storyOf(entries(), orphaned(), silent()), checkpoints.value), index());
    scroll.value = logList.box(element);
  }

  const rowsOfTree = memo((/** @type {Shown} */ s, /** @type {boolean} */ folding, /** @type {ReadonlySet<string>} */ t) => tree(treeRows(s.data, s.operations, { fold: folding, toggled: t, opened, rests: s.rests }), toggle));

  /** Open or close a container of the state; what was not read yet is read now. @param {string} p */
  async function toggle(p) {
    const s = /** @type {Shown} */ (shown.peek());
    const container = p.endsWith("…") ? p.slice(0, -1) : p;
    const more = p !== container && s.rests.has(container);
    if (more || folded(at(s.data, p))) {
      try {
        const part = await states.part(s.dataSeq, container, more ? Object.keys(at(s.data, container)).length : 0);
        const newest = shown.peek();
        if (newest?.dataSeq !== s.dataSeq) return;
        opened.add(container);
        shown.value = { ...newest, ...parted(newest.data, newest.rests, container, part) };
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        toast(error.message);
      }
      if (!more || toggled.peek().has(p)) return;
    }
    const next = new Set(toggled.peek());
    if (!next.delete(p)) next.add(p);
    toggled.value = next;
  }
  const diffOf = memo((/** @type {Shown} */ s) => operationRows(s.operations));

  function centre() {
    const entry = current();
    const s = shown.value;
    const fresh = s && s.seq === entry.seq ? s : null;
    const key = s && !s.trouble && !s.large ? messageKey(s.data) : "";
    const name = tab() === "messages" && !key ? "state" : tab();
    const base = entries().find(({ seq }) => seq === baseOf(entry));
    const own = CHECKPOINTS.has(entry.kind);
    const tabs = [["state", "State", ""], ["diff", "Diff", s?.operations.length ? count(s.operations.length) : ""], ...(key ? [["messages", "Messages", count(s?.data[key].length)]] : []), ["raw", "Raw", ""]];
    return html`<section class="panel centre" aria-label="State">
      <header class="panel-head tabs"><div role="tablist">${tabs.map(([value, text, number]) => html`<button role="tab" aria-selected=${String(name === value)} @click=${() => setTab(value)}>${text}${number ? html` <span class="number">${number}</span>` : null}</button>`)}</div>
        <span class="push"></span><a class="quiet-link" href=${compareUrl()}>compare <kbd aria-hidden="true">d</kbd></a><button class="quiet" @click=${setA}>${seqA() ? "clear A" : html`set A here <kbd>a</kbd>`}</button></header>
      <div class="sum-line">${fresh && !fresh.trouble && (own || seqA()) ? summary(fresh.operations) : null}
        <span class="soft">${seqA() ? html`since <b>A</b> <span class="mono">${base ? `${base.seq} ${plain(base.name)}` : seqA()}</span>` : own ? (base ? html`since <span class="mono">${base.seq} ${plain(base.name)}</span>` : "the first state") : entry.data_seq ? html`no data of its own; the state is that of <span class="mono">${entry.data_seq} ${plain(target()?.name ?? "")}</span>` : "no data yet"}</span>
        <span class="push"></span>
        ${name === "state" ? html`<span class="segments"><button aria-pressed=${String(fold.value)} @click=${() => (fold.value = true)}>fold what is as before</button><button aria-pressed=${String(!fold.value)} @click=${() => (fold.value = false)}>all</button></span>` : null}
        <span class="soft">${target()?.state_bytes ? `${size(target()?.state_bytes ?? 0)} of state, ` : ""}${size(entry.bytes)} stored</span></div>
      <div class="centre-body" role="tabpanel">${happened(entry)}
      ${!s ? html`<div class="grey-bars" aria-hidden="true"><i></i><i></i><i></i></div>`
        : s.trouble ? html`<p class="boxed note-box">${s.trouble}</p>`
        : !fresh && s.dataSeq !== entry.data_seq ? html`<p class="soft pending mono">${plain(entry.name)} ${(entry.changed ?? []).map(plain).join(", ")}</p>`
        : !s.dataSeq ? html`<p class="soft pending">The agent has saved nothing yet.</p>`
        : name === "diff" ? (s.operations.length ? diffOf(s) : html`<p class="soft pending">Nothing changed.</p>`)
        : name === "messages" ? messages({ data: s.data, key, story: storyOf(entries(), orphaned(), silent()), index: index(), operations: s.operations, before: s.base })
        : name === "raw" ? s.large ? rawLink(id, s.dataSeq) : raw(id, s.dataSeq, s.data)
        : rowsOfTree(s, fold.value, toggled.value)}</div></section>`;
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
      ${logList.log({ story: storyOf(entries(), orphaned(), silent()), rows: rowsOf(storyOf(entries(), orphaned(), silent()), checkpoints.value), index: index(), scroll, total: source.total.value, checkpoints: checkpoints.value, onselect: select, onfilter: (only) => { checkpoints.value = only; replace(withQuery({ log: only ? "checkpoints" : null })); }, ref: rowsRef })}
      ${centre()}${side()}</div>`;
  }

  return { title: id, view, shortcuts, dispose: () => { stopLoading(); stopStream(); clearTimeout(restTimer); } };
}

/** A button that says why it cannot be used, instead of vanishing. @param {string} text @param {string} key @param {string} why @param {() => void} run @param {string} [look] */
export const actionButton = (text, key, why, run, look = "") => html`<button class=${look} disabled=${Boolean(why)} title=${why || null} aria-label=${why ? `${text}: ${why}` : null} @click=${run}>${text}${why.startsWith("needs scope") ? html`<span class="needs">${why}</span>` : key ? html`<kbd aria-hidden="true">${key}</kbd>` : null}</button>`;

/** @param {string} id @param {Failure} failure @param {import("./trail.js").Trail | null} trail */
const missingView = (id, failure, trail) => trail
  ? html`<section class="panel pad missing"><h1>${plain(id)} was deleted</h1><p>Its data cannot be read any more; this is what happened to it.</p>${trailTable(trail)}</section>`
  : failure.status === 404
  ? html`<section class="panel pad missing"><h1>There is no session ${plain(id)} here</h1><p>It may have been deleted or purged, be in another namespace, or the id may be incomplete.</p><p><a href=${`/sessions?text=${encodeURIComponent(id)}`}>Search for it</a> · <code>${cli(["audit", id])}</code> shows what happened to a deleted one.</p></section>`
  : html`<section class="panel pad missing"><h1>${plain(id)} cannot be shown</h1><p>${failure.message}</p></section>`;
