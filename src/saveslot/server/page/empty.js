// @ts-check
/** Before the first session: what a tape is, and three ways to begin. */
import { story } from "./entries.js";
import { layout } from "./layout.js";
import { exampleTape } from "./tape.js";
import { html, memo } from "./view.js";

const START = Date.parse("2026-01-01T14:12:52Z");
/** @type {[number, string, string, string | null, object?][]} seconds, kind, name, owner, more */
const EXAMPLE = [
  [0, "created", "", null], [2, "taken", "", "runner-1:4711"], [4, "checkpoint", "task_received", "runner-1:4711"], [6, "step_finished", "ask-model", "runner-1:4711"],
  [9, "checkpoint", "planned", "runner-1:4711"], [13, "step_finished", "search", "runner-1:4711"], [16, "checkpoint", "chosen", "runner-1:4711"], [20, "step_finished", "book", "runner-1:4711"],
  [22, "checkpoint", "booked", "runner-1:4711"], [48, "claimed", "", "runner-2:9120", { from: { worker: "runner-1:4711", silent_since: new Date(START + 25_000).toISOString() } }],
  [52, "step_finished", "ask-model", "runner-2:9120"], [55, "checkpoint", "reviewed", "runner-2:9120"], [60, "rollback", "chosen", "runner-2:9120", { to: { seq: 7, name: "chosen" } }],
  [65, "checkpoint", "booked", "runner-2:9120"], [68, "completed", "", "runner-2:9120"],
];
const entries = EXAMPLE.map(([at, kind, name, owner, more], i) => ({
  seq: i + 1, kind, name, owner, at: new Date(START + at * 1000).toISOString(), bytes: kind === "checkpoint" ? 300 + 40 * i : 50, forks: [],
  step: kind === "step_finished" ? { key: null, mode: /** @type {const} */ ("idempotent"), status: /** @type {const} */ ("finished"), started_at: new Date(START + (at - 1.5) * 1000).toISOString(), duration_s: 1.5, error: "", attempt: 1, idempotency_key: "" } : null,
  ...more,
}));
const drawn = memo((/** @type {number} */ width) => exampleTape(layout(story(entries), { width, state: "completed" })));

/** @param {string} title @param {string} text @param {string} code */
const way = (title, text, code) => html`<section class="panel pad"><h2>${title}</h2><p class="soft">${text}</p><pre class="mono boxed code">${code}</pre></section>`;

export const emptyView = () => html`<div class="empty"><h1>Nothing saved here yet.</h1>
  <p class="lead">Saveslot keeps what an agent knows. Each session becomes a tape like this one: you see which workers held it, what each checkpoint saved, where a worker died and another one took over.</p>
  <section class="panel pad" aria-label="An example"><span class="label example">an example</span>${drawn(Math.min(1050, innerWidth - 60))}
    <ul class="marks"><li><i class="k-clip"></i>a clip: one owner</li><li><i class="k-notch"></i>a notch: a checkpoint</li><li><i class="k-diamond"></i>a step, done once</li><li><b class="s-failed">✗</b> a torn edge: the owner died</li><li><b>↩</b> an arc: rolled back</li></ul></section>
  <div class="ways">${way("See it happen, 20 seconds", "Three agents book trips; one is killed.", "saveslot demo")}
    ${way("Save from your agent", "Durable when the call returns.", 'session = await sessions.create_session("tutor")\nawait sessions.checkpoint(session, "asked", data)')}
    ${way("Bring what you have", "An export, or another store.", "saveslot import session.json\nsaveslot copy old.db new.db")}</div>
  <p class="soft" role="status">This page is waiting: the first session appears here by itself.</p></div>`;
