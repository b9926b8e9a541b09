// @ts-check
/** One session: its tape, its log, and the state at the playhead. */
import * as actions from "./actions.js";
import { Failure, apiUrl, missing } from "./api.js";
import { cli, copyText, curl } from "./copy.js";
import { plain } from "./format.js";
import { editLabels } from "./labels.js";
import * as logList from "./log.js";
import { arrivals, go, place, replace, withQuery } from "./places.js";
import { playhead } from "./playhead.js";
import { headline } from "./session_head.js";
import { missingView } from "./session_missing.js";
import { side } from "./session_side.js";
import { sessionSource } from "./session_source.js";
import { statePane } from "./state_pane.js";
import { connected, onEntry } from "./stream.js";
import { even, setEven, tapePanel, zoomBy } from "./tape_panel.js";
import { toast } from "./toast.js";
import { effect, html, memo, signal } from "./view.js";

/** @typedef {import("./entries.js").Header} Header */
/** @typedef {ReturnType<typeof verbsOf>} Verbs */

// Milliseconds from one reading of what came to the next; and between two readings of a held session, which shows the
// last heartbeat of its owner.
const PAUSE = 400;
const BEAT = 10_000;
// Milliseconds after a reading that the server did not answer.
const AGAIN = 2000;

/** A key says what its disabled button would. @param {string} why it cannot be done @param {() => void} run */
const able = (why, run) => (why ? toast(why) : run());

/** @param {string} id */
export function sessionScreen(id) {
  const source = sessionSource(id);
  const { session, entries } = source;
  const checkpoints = signal(place.peek().query.get("log") === "checkpoints");
  const scroll = signal({ top: 0, height: 600 });
  /** @type {HTMLElement | null} */
  let rowsElement = null;
  const rowsOf = memo(logList.rows);
  const head = playhead(source.log, (index) => rowsElement && logList.reveal(rowsElement, rowsOf(source.storyOf(), checkpoints.peek()), index));
  const verbs = verbsOf(source, head, changed);

  async function changed() {
    try {
      await source.reload(head.following.peek());
      if (head.following.peek()) head.toLast(true);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      // While the server does not answer, what is known stays; it is read again soon after.
      if (error.unsure) again = setTimeout(follow, AGAIN);
      else await source.failed(error);
    }
  }
  let again = 0;
  let stale = false;
  let following = false;
  /** Many entries, few readings: one at a time, with a pause after each. */
  async function follow() {
    stale = true;
    if (following) return;
    following = true;
    try {
      while (stale) {
        stale = false;
        await changed();
        await new Promise((rested) => setTimeout(rested, PAUSE));
      }
    } finally {
      following = false;
    }
  }
  const stopStream = onEntry({ session_id: id, owners: true }, follow);
  const beat = setInterval(() => !document.hidden && connected.peek() && session.peek()?.owner && follow(), BEAT);
  const at = place.peek().query.get("at");
  source.load(at, (seq) => head.begin(seq, !at));

  // A link to another entry of this session moves the playhead, and so does going back.
  const stopArrivals = effect(() => {
    const to = arrivals.value && place.peek().id === id && session.peek() ? place.peek().query.get("at") : undefined;
    if (to === null && !head.following.peek()) head.toEnd();
    else if (to && Number(to) !== head.selected.peek()) head.jump(Number(to));
  });

  const narrow = () => innerWidth < 700;
  const tab = () => place.value.query.get("tab") ?? (narrow() ? "diff" : "state");
  const setTab = (/** @type {string} */ name) => replace(withQuery({ tab: name === "state" && !narrow() ? null : name }));
  const here = () => head.current()?.data_seq || "latest";
  const base = () => head.baseOf(head.current());
  const compareUrl = () => `/compare?a=${encodeURIComponent(`${id}@${base() || here()}`)}&b=${encodeURIComponent(`${id}@${here()}`)}`;
  const copies = () => (tab() === "diff" && base()
    ? { cli: cli(["diff", `${id}@${base()}`, `@${here()}`]), curl: curl(apiUrl(`${source.path}/diff`, { a: base(), b: here() })) }
    : { cli: cli(["show", `${id}@${here()}`]), curl: curl(apiUrl(`${source.path}/checkpoints/${here()}`)) });

  const drawTape = tapePanel(source, head);
  const pane = statePane({ id, ...head, storyHere: source.storyOf, ondamage: source.log.damage, tab, setTab, compareUrl });

  const shortcuts = () => (entries().length && session.value ? [
    { keys: ["[", "ArrowLeft"], text: "previous entry", run: () => head.step(-1) },
    { keys: ["]", "ArrowRight"], text: "next entry", run: () => head.step(1) },
    { keys: ["{"], text: "previous checkpoint", run: () => head.stepCheckpoint(-1) },
    { keys: ["}"], text: "next checkpoint", run: () => head.stepCheckpoint(1) },
    { keys: ["Home"], text: "first entry", run: () => head.jump(1) },
    { keys: ["End"], text: "newest entry, and follow", run: head.toEnd },
    { keys: ["a"], text: "set A here, or clear it", run: head.setA },
    { keys: ["d"], text: "compare with A, or with what was before", run: () => go(compareUrl()) },
    ...["state", "diff", "messages", "raw"].map((name, i) => ({ keys: [String(i + 1)], text: name, run: () => setTab(name) })),
    { keys: ["e"], text: "fold what is as before", run: () => (pane.fold.value = !pane.fold.peek()) },
    { keys: ["z"], text: "scale: time or even", run: () => setEven(!even()) },
    { keys: ["+", "="], text: "zoom in", run: () => zoomBy(1) },
    { keys: ["-"], text: "zoom out", run: () => zoomBy(-1) },
    { keys: ["r"], text: "roll back", run: () => able(verbs.rollbackWhy(), verbs.rollback) },
    { keys: ["f"], text: "fork", run: () => able(actions.why(verbs.subject(), "fork"), verbs.fork) },
    { keys: ["p"], text: "pause or resume", run: () => able(actions.why(verbs.subject(), session.peek().state === "paused" ? "resume" : "pause"), verbs.pause) },
    { keys: ["."], text: "pin or unpin", run: () => able(missing("write"), verbs.pin) },
    { keys: ["l"], text: "labels", run: () => able(actions.why(verbs.subject(), "update"), verbs.label) },
    { keys: ["y"], text: "copy as CLI", run: () => copyText(copies().cli, "the command") },
  ].map((s) => ({ where: "Tape", ...s })) : []);

  /** @param {HTMLElement} element */
  function rowsRef(element) {
    rowsElement = element;
    new ResizeObserver(() => (scroll.value = logList.box(element))).observe(element);
    logList.reveal(element, rowsOf(source.storyOf(), checkpoints.value), head.index());
    scroll.value = logList.box(element);
  }
  /** @param {boolean} only */
  function filterLog(only) {
    checkpoints.value = only;
    replace(withQuery({ log: only ? "checkpoints" : null }));
  }

  function view() {
    if (source.failure.value) return missingView(id, source.failure.value, source.audit.trail.value);
    if (!session.value || !entries().length) return html`<div class="headline"><h1>${plain(id)}</h1></div><div class="panel tape-panel loading"></div>`;
    const story = source.storyOf();
    return html`${headline(source, verbs, copies())}${drawTape()}<div class="columns">
      ${logList.log({ story, rows: rowsOf(story, checkpoints.value), index: head.index(), scroll, total: source.log.total.value, checkpoints: checkpoints.value, onselect: head.select, onfilter: filterLog, ref: rowsRef })}
      ${pane.view()}${side(source, verbs)}</div>`;
  }

  return { title: id, view, shortcuts, dispose: () => { stale = false; clearTimeout(again); clearInterval(beat); pane.stop(); stopStream(); stopArrivals(); head.stop(); source.stop(); } };
}

/** What can be done here, at the playhead. @param {import("./session_source.js").SessionSource} source @param {import("./playhead.js").Playhead} head @param {() => void} changed */
function verbsOf(source, { entries, target }, changed) {
  /** @returns {import("./actions.js").Subject} */
  function subject() {
    const { state, version, owner } = source.session.value;
    return { id: source.id, state, orphaned: source.orphaned(), locked: source.session.value.locked, version, owner, outlook: source.outlook.value, entries: entries(), live: connected.value, changed };
  }
  /** @param {(at: Header) => void} act */
  const withTarget = (act) => {
    const at = target();
    if (at) act(at);
  };
  const rollbackWhy = () => (target()?.seq === entries()[entries().length - 1]?.data_seq ? "the session is at this state" : !target() ? "no data here" : target()?.thinned ? "thinned: its data is gone" : target()?.damaged ? "damaged: its data cannot be read" : actions.why(subject(), "rollback"));
  return {
    subject,
    target,
    rollbackWhy,
    rollback: () => withTarget((at) => actions.rollback(subject(), at)),
    fork: () => withTarget((at) => actions.fork(subject(), at)),
    pause: () => (source.session.peek().state === "paused" ? actions.now(subject(), "resume", "pause") : actions.now(subject(), "pause", "resume")),
    label: () => editLabels(subject(), source.session.peek().labels),
    pin: () => withTarget((at) => actions.now(subject(), at.pinned ? "unpin" : "pin", at.pinned ? "pin" : "unpin", { ref: at.seq })),
  };
}
