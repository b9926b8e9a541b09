import assert from "node:assert/strict";
import { test } from "node:test";

import { story } from "../../../src/saveslot/server/page/entries.js";
import { layout, notchHeight, ownerLabel, spread } from "../../../src/saveslot/server/page/layout.js";

const START = Date.parse("2026-05-04T12:00:00Z");
const entry = (seq, after, kind, more = {}) => ({
  seq, kind, name: more.name ?? kind, at: new Date(START + after * 1000).toISOString(), bytes: 300, owner: null, forks: [], ...more,
});

/** Two workers: the first dies at 20 s, the second claims at 43 s, rolls back to 3 and completes. */
const TAKEOVER = [
  entry(1, 0, "created"),
  entry(2, 1, "taken", { owner: "a:1" }),
  entry(3, 5, "checkpoint", { owner: "a:1", name: "planned" }),
  entry(4, 20, "checkpoint", { owner: "a:1", name: "booked" }),
  entry(5, 43, "claimed", { owner: "b:2", from: { worker: "a:1", silent_since: new Date(START + 21000).toISOString() } }),
  entry(6, 50, "rollback", { owner: "b:2", name: "planned", to: { seq: 3, name: "planned" } }),
  entry(7, 55, "step_finished", { owner: "b:2", name: "mail", step: { key: "k", status: "finished", started_at: null, error: "" } }),
  entry(8, 60, "completed"),
];

test("a claim ends the former owner's clip as died, with the silence since its last heartbeat", () => {
  const { clips } = story(TAKEOVER);
  assert.deepEqual(clips.map(({ worker, end }) => [worker, end]), [["a:1", "died"], ["b:2", "ended"]]);
  const marks = layout(story(TAKEOVER), { width: 1400, state: "completed" });
  assert.deepEqual(marks.gaps.map(({ word, length }) => [word, length]), [["died", 22]]);
});

test("a rollback leaves behind what lies between it and its target, but no effect is hatched", () => {
  const s = story(TAKEOVER);
  assert.deepEqual([...s.behind], [4, 5]);
  const marks = layout(s, { width: 1400, state: "completed" });
  assert.equal(marks.arcs[0].label, "↩ rolled back to 3 planned");
  assert.equal(marks.effects.length, 1);
});

test("no two entries are nearer than 12 pixels, 24 on a phone, whatever their times", () => {
  const crowd = Array.from({ length: 300 }, (_, i) => entry(i + 1, i / 1000, "checkpoint"));
  for (const [touch, least] of [[false, 12], [true, 24]]) {
    const { xs } = layout(story(crowd), { width: 800, state: "active", touch });
    xs.slice(1).forEach((x, i) => assert.ok(x - xs[i] >= least - 1e-6));
  }
});

test("gaps up to 16 s are to scale, longer ones all have one width", () => {
  const [a, b, c, d] = spread([4, 8, 60, 6000], 1000, 12, false);
  assert.ok(Math.abs(b / a - 2) < 0.01);
  assert.ok(Math.abs(c - d) < 1e-6 && c > b);
  assert.ok(Math.abs(a + b + c + d - 1000) < 1e-6);
});

test("labels on the ruler are 84 pixels apart, and names never overlap", () => {
  const crowd = Array.from({ length: 80 }, (_, i) => entry(i + 1, i * 3, "checkpoint", { name: `checkpoint-${i}` }));
  const { ruler, names } = layout(story(crowd), { width: 1400, state: "active", selected: 41 });
  ruler.slice(1).forEach(({ x }, i) => assert.ok(x - ruler[i].x >= 84));
  assert.ok(names.some(({ index }) => index === 41));
  for (const y of new Set(names.map((n) => n.y))) {
    const row = names.filter((n) => n.y === y).sort((p, q) => p.x - q.x);
    row.slice(1).forEach((n, i) => assert.ok(n.x - row[i].x >= ((n.text.length + row[i].text.length) / 2) * 6.6));
  }
});

test("a dead worker whose session nobody claimed has an open torn end with the age of its silence", () => {
  const log = TAKEOVER.slice(0, 4);
  const silent = new Date(START + 21000).toISOString();
  const marks = layout(story(log, { orphaned: true, silentSince: silent }), { width: 1400, state: "active", orphaned: true, now: START / 1000 + 81 });
  assert.equal(marks.clips[0].end, "orphaned");
  assert.deepEqual(marks.gaps.at(-1), { ...marks.gaps.at(-1), word: "orphaned", length: 60 });
});

test("a pause has its length, and a step that began is open until an entry ends it", () => {
  const log = [
    entry(1, 0, "created"),
    entry(2, 1, "paused"),
    entry(3, 179, "resumed"),
    entry(4, 180, "step_started", { name: "mail", owner: "a:1", step: { key: "k", status: "unknown", started_at: new Date(START + 180000).toISOString(), error: "" } }),
  ];
  const marks = layout(story(log), { width: 1000, state: "active" });
  assert.deepEqual(marks.gaps.filter(({ word }) => word === "paused").map(({ length }) => length), [178]);
  assert.deepEqual(marks.effects.map(({ status, label }) => [status, label]), [["unknown", "mail k"]]);
});

test("each fork has a lane of its own, later ones above, and none reaches beyond the tape", () => {
  const log = [
    entry(1, 0, "created"),
    entry(2, 4, "checkpoint", { forks: [{ id: "early", state: "failed", entries: 9 }] }),
    entry(3, 8, "checkpoint", { forks: [{ id: "late", state: "completed", entries: 14 }] }),
  ];
  const { forks, width } = layout(story(log), { width: 900, state: "active" });
  const [late, early] = [forks.find((f) => f.id === "late"), forks.find((f) => f.id === "early")];
  assert.ok(late.y < early.y);
  for (const fork of forks) assert.ok(fork.end < width);
});

test("a notch grows with what changed, up to 30 pixels; a name shrinks to what its clip has room for", () => {
  assert.ok(notchHeight(0) === 3 && notchHeight(100) < notchHeight(1000) && notchHeight(1e9) === 30);
  assert.deepEqual([200, 70, 30].map((width) => ownerLabel("runner-10:9120", width)), ["runner-10:9120", "runner-10", ""]);
});

test("a log of 10,000 entries has a place for each", () => {
  const log = Array.from({ length: 10_000 }, (_, i) => entry(i + 1, i * 2, "checkpoint", { owner: "a:1" }));
  assert.equal(layout(story(log), { width: 1400, state: "active" }).xs.length, 10_000);
});

test("from the seventh owner on, whose colour is another one's, a clip always has its name", () => {
  const takes = Array.from({ length: 8 }, (_, n) => entry(n + 1, n, n ? "claimed" : "taken", { owner: `worker-${n}:1`, from: null }));
  const { clips } = layout(story(takes), { width: 300, state: "active" });
  assert.deepEqual(clips.map(({ label }) => label).slice(0, 7), ["", "", "", "", "", "", "worker-6"]);
});

test("damaged entries are marked by a word where there is room, else by its sign", () => {
  const damaged = [entry(1, 0, "created"), ...[2, 3, 4].map((n) => entry(n, n, "checkpoint", { damaged: "wrong digest" }))];
  const marks = layout(story(damaged), { width: 160, state: "completed" });
  assert.deepEqual(marks.notches.map(({ damaged: text }) => text), ["", "! damaged", "!", "!"]);
});
