// @ts-check
/** The state at the playhead: as a tree, as a diff, as messages, as JSON. */
import { Failure } from "./api.js";
import { copyText } from "./copy.js";
import { CHECKPOINTS } from "./entries.js";
import { count, plain, size } from "./format.js";
import { happened } from "./happened.js";
import { messageKey, messages } from "./messages.js";
import { operationRows, summary } from "./operations.js";
import { raw, rawLink } from "./raw.js";
import { LARGE, at, stateSource, withPart } from "./states.js";
import { toast } from "./toast.js";
import { tree, treeRows } from "./tree.js";
import { folded } from "./values.js";
import { effect, html, memo, signal } from "./view.js";

/** @typedef {{seq: number, dataSeq: number, base: number, data: any, operations: import("./operations.js").Operation[], trouble: string, again: boolean, large: boolean, rests: ReadonlyMap<string, number>}} Shown `again`: it may be there the next time; `rests`: children of a container that were not read yet */

/** @typedef {import("./entries.js").Header} Header */
/** @typedef {{id: string, entries: () => readonly Header[], entryAt: (seq: number) => Header | null, index: () => number, current: () => Header, target: () => Header | null, led: () => boolean, baseOf: (entry: Header) => number, storyHere: () => import("./entries.js").Story, seqA: () => number, setA: () => void, ondamage: (seq: number, reason: string) => void, tab: () => string, setTab: (name: string) => void, compareUrl: () => string}} Place */

// Milliseconds that the playhead rests before a state is asked for; and from one to the next while it follows what comes.
const REST = 40;
const PACE = 1000;

/**
 * A large state with one more part of it, and how many children of each container are still to be read.
 * @param {any} data @param {ReadonlyMap<string, number>} rests @param {string} path @param {import("./states.js").Part} part
 */
function parted(data, rests, path, part) {
  const left = new Map(rests).set(path, part.next === null ? 0 : part.size - part.next);
  return { data: withPart(data, path, part), rests: new Map([...left].filter(([, n]) => n)) };
}

/** @param {Failure} error */
function troubleText(error) {
  if (error.code === "key_missing" || error.code === "wrong_key") return "Sealed: this server does not have the key, so it cannot read the data. The log above is whole.";
  if (error.code === "corrupt") return `Damaged: ${error.message}. The command saveslot doctor says more.`;
  return error.message;
}

/** @param {Place} place */
export function statePane({ id, entries, entryAt, index, current, target, led, baseOf, storyHere, seqA, setA, ondamage, tab, setTab, compareUrl }) {
  const states = stateSource(id);
  const fold = signal(true);
  const toggled = signal(/** @type {ReadonlySet<string>} */ (new Set()));
  const shown = signal(/** @type {Shown | null} */ (null));
  /** Containers that were read on opening. @type {Set<string>} */
  const opened = new Set();

  /** What the state is rebuilt from, read once Raw is looked at. */
  const recipe = signal(/** @type {{seq: number, recipe: import("./states.js").Recipe} | null} */ (null));
  const stopRecipe = effect(() => {
    const s = shown.value;
    if (tab() !== "raw" || !s?.dataSeq || s.trouble || recipe.peek()?.seq === s.dataSeq) return;
    states.recipe(s.dataSeq).then((value) => (recipe.value = { seq: s.dataSeq, recipe: value }), (error) => toast(error.message));
  });
  const recipeOf = (/** @type {Shown} */ s) => (recipe.value?.seq === s.dataSeq ? recipe.value.recipe : null);

  // The state and the diff at the playhead, a moment after it rests.
  let asked = 0;
  let loadedAt = -PACE;
  const stopLoading = effect(() => {
    const entry = entries().length ? current() : null;
    if (!entry) return;
    const base = baseOf(entry);
    const dataSeq = entry.data_seq ?? 0;
    const was = shown.peek();
    if (was && was.dataSeq === dataSeq && was.base === base && !was.again) {
      if (was.seq !== entry.seq) shown.value = { ...was, seq: entry.seq };
      return;
    }
    const mine = ++asked;
    setTimeout(async () => {
      if (mine !== asked) return;
      loadedAt = performance.now();
      const value = { seq: entry.seq, dataSeq, base, data: /** @type {any} */ ({}), operations: /** @type {any[]} */ ([]), trouble: "", again: false, large: (entryAt(dataSeq)?.state_bytes ?? 0) >= LARGE, rests: new Map() };
      try {
        if (entryAt(dataSeq)?.thinned) value.data = null;
        else if (value.large) Object.assign(value, parted({}, new Map(), "", await states.outline(dataSeq)));
        else if (dataSeq) value.data = await states.state(dataSeq);
        if (dataSeq && value.data === null) value.trouble = "This checkpoint was thinned: its data is gone, its entry stays.";
        else if (dataSeq && base && base !== dataSeq) value.operations = await states.diff(base, dataSeq, value.large);
        else if (dataSeq && !base) value.operations = Object.entries(value.data).map(([key, v]) => ({ op: /** @type {const} */ ("add"), path: `/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`, value: v }));
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        value.trouble = troubleText(error);
        value.again = error.unsure && error.code !== "corrupt";
        if (error.code === "corrupt") ondamage(dataSeq, error.body.reason ?? error.message);
      }
      if (mine === asked) shown.value = value;
    }, Math.max(REST, led() ? loadedAt + PACE - performance.now() : 0));
  });

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

  function view() {
    const entry = current();
    const s = shown.value;
    const fresh = s && s.seq === entry.seq ? s : null;
    const key = s && !s.trouble && !s.large ? messageKey(s.data) : "";
    const name = tab() === "messages" && !key ? "state" : tab();
    const base = entryAt(baseOf(entry));
    const own = CHECKPOINTS.has(entry.kind);
    const tabs = [["state", "State", ""], ["diff", "Diff", s?.operations.length ? count(s.operations.length) : ""], ...(key ? [["messages", "Messages", count(s?.data[key].length)]] : []), ["raw", "Raw", ""]];
    return html`<section class="panel centre" aria-label="State">
      <header class="panel-head tabs"><div role="tablist">${tabs.map(([value, text, number]) => html`<button role="tab" aria-selected=${String(name === value)} @click=${() => setTab(value)}>${text}${number ? html` <span class="number">${number}</span>` : null}</button>`)}</div>
        <span class="push"></span><button class="quiet" @click=${setA}>${seqA() ? "clear A" : html`set A here <kbd>a</kbd>`}</button><a class="quiet-link" href=${compareUrl()}>compare <kbd aria-hidden="true">d</kbd></a></header>
      <div class="sum-line">${fresh && !fresh.trouble && (own || seqA()) ? summary(fresh.operations) : null}
        <span class="soft">${seqA() ? html`since <b>A</b> <span class="mono">${base ? `${base.seq} ${plain(base.name)}` : seqA()}</span>` : own ? (base ? html`since <span class="mono">${base.seq} ${plain(base.name)}</span>` : "the first state") : entry.data_seq ? html`no data of its own; the state is that of <span class="mono">${entry.data_seq} ${plain(target()?.name ?? "")}</span>` : "no data yet"}</span>
        <span class="push"></span>
        ${name === "diff" && fresh?.operations.length ? html`<button class="quiet" @click=${() => copyText(JSON.stringify(fresh.operations.map(({ old: _, ...operation }) => operation), null, 2), "the operations")}>copy RFC 6902</button>` : null}
        ${name === "state" ? html`<span class="segments"><button aria-pressed=${String(fold.value)} @click=${() => (fold.value = true)}>fold what is as before</button><button aria-pressed=${String(!fold.value)} @click=${() => (fold.value = false)}>all</button></span>` : null}
        <span class="soft">${target()?.state_bytes ? `${size(target()?.state_bytes ?? 0)} of state, ` : ""}${size(entry.bytes)} stored</span></div>
      <div class="centre-body" role="tabpanel">${happened(entry)}
      ${!s ? html`<div class="grey-bars" aria-hidden="true"><i></i><i></i><i></i></div>`
        : s.trouble ? html`<p class="boxed note-box">${s.trouble}</p>`
        : !fresh && s.dataSeq !== entry.data_seq ? html`<p class="soft pending mono">${plain(entry.name)} ${(entry.changed ?? []).map(plain).join(", ")}</p>`
        : !s.dataSeq ? html`<p class="soft pending">The agent has saved nothing yet.</p>`
        : name === "diff" ? (s.operations.length ? diffOf(s) : html`<p class="soft pending">Nothing changed.</p>`)
        : name === "messages" ? messages({ data: s.data, key, story: storyHere(), index: index(), operations: s.operations, before: s.base })
        : name === "raw" ? s.large ? rawLink(id, s.dataSeq, recipeOf(s)) : raw(id, s.dataSeq, s.data, recipeOf(s))
        : rowsOfTree(s, fold.value, toggled.value)}</div></section>`;
  }

  return { view, fold, stop: () => { stopLoading(); stopRecipe(); } };
}
