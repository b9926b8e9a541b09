import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.localStorage = { getItem: () => null, setItem() {} };
globalThis.document = { addEventListener() {}, documentElement: { dataset: {} }, hidden: false };
globalThis.location = new URL("http://127.0.0.1:7788/");
globalThis.history = { state: null, pushState() {}, replaceState() {} };
globalThis.addEventListener = () => {};
globalThis.setInterval = () => 0;

const page = "../../../src/saveslot/server/page";
const { effect, flush, memo, signal } = await import(`${page}/view.js`);
const { clipped, dotted, plain, size, span } = await import(`${page}/format.js`);
const query = await import(`${page}/query.js`);
const { placed, withPart } = await import(`${page}/states.js`);
const { since } = await import(`${page}/messages.js`);
const { rows } = await import(`${page}/log.js`);
const { story } = await import(`${page}/entries.js`);
const { treeRows } = await import(`${page}/tree.js`);
const { wordDiff } = await import(`${page}/words.js`);
const { grouped, inOrder, needs } = await import(`${page}/now.js`);
const { eventFilters } = await import(`${page}/events.js`);
const { labelPlaces } = await import(`${page}/charts.js`);
const { merged } = await import(`${page}/event_rows.js`);
const { changesOf } = await import(`${page}/labels.js`);
const { recipeText } = await import(`${page}/raw.js`);
const { keeps, when } = await import(`${page}/retention.js`);
const { joined } = await import(`${page}/log_source.js`);
const { quoted } = await import(`${page}/copy.js`);

test("an effect runs again once after several changes, and not at all after it was ended", () => {
  const [a, b] = [signal(1), signal(2)];
  const seen = [];
  const stop = effect(() => seen.push(a.value + b.value));
  a.value = 5;
  b.value = 6;
  flush();
  assert.deepEqual(seen, [3, 11]);
  stop();
  a.value = 0;
  flush();
  assert.deepEqual(seen, [3, 11]);
});

test("an effect depends on what it read the last time only", () => {
  const [which, a, b] = [signal(true), signal(1), signal(2)];
  let runs = 0;
  effect(() => (runs++, which.value ? a.value : b.value));
  b.value = 9;
  flush();
  assert.equal(runs, 1);
  which.value = false;
  flush();
  a.value = 7;
  flush();
  assert.equal(runs, 2);
});

test("memo computes again only for other arguments", () => {
  let runs = 0;
  const double = memo((n) => (runs++, n * 2));
  assert.deepEqual([double(2), double(2), double(3), runs], [4, 4, 6, 2]);
});

test("what cannot be seen is spelled out, and long text is cut", () => {
  assert.equal(plain("a\u202eb\u0000c\u200b\ud800"), "a\\u202eb\\u0000c\\u200b\\ud800");
  assert.equal(plain("tab\tline\n€ 😀"), "tab\tline\n€ 😀");
  assert.equal(clipped("x".repeat(5000)).length, 2001);
  assert.deepEqual([dotted("/bookings/1/a~1b"), dotted("")], ["bookings[1].a/b", "(all)"]);
});

test("numbers read as people write them", () => {
  assert.deepEqual([size(999), size(1500), size(123_456_789)], ["999 B", "1.5 KB", "123 MB"]);
  assert.deepEqual([span(0.025), span(6.2), span(48), span(259), span(10_920)], ["25 ms", "6.2 s", "48 s", "4 m 19 s", "3 h 02 m"]);
});

test("a query and its text are the same thing", () => {
  const text = 'state:failed label:env=prod user:"anna b" timeout';
  assert.equal(query.print(query.parse(text)), 'state:failed user:"anna b" label:env=prod timeout');
  assert.deepEqual(query.parse("http://x state:sleeping"), { state: ["sleeping"], text: ["http://x"] });
  assert.deepEqual(query.toApi(query.parse("state:orphaned agent:tutor")).orphaned, true);
  assert.deepEqual(query.toCli(query.parse("state:failed x")), ["--state", "failed", "--text", "x"]);
});

test("a token that takes no such value filters nothing, and says what it takes", () => {
  const wrong = query.parse("state:sleeping label:env before:soon after:999999999w agent:tutor");
  assert.deepEqual(query.toApi(wrong), { state: [], orphaned: undefined, agent_type: ["tutor"], user_id: undefined, label: [], text: undefined, created_before: undefined, created_after: undefined });
  const sentences = query.misfits(wrong);
  assert.equal(sentences.length, 4);
  assert.match(sentences[1], /label:env is ignored; after label: write name=value/);
  assert.match(sentences[2], /before:soon is ignored; after before: write a date \(2026-11-18\)/);
  assert.deepEqual(query.misfits(query.parse("state:failed label:env=prod before:2d")), []);
});

test("before: and after: take dates, times and ages, and the command line the same moment", () => {
  const noon = Date.parse("2026-11-18T12:00:00Z");
  assert.equal(query.instant("2026-11-18"), "2026-11-18T00:00:00.000Z");
  assert.equal(query.instant("2026-11-18 12:00"), "2026-11-18T12:00:00.000Z");
  assert.equal(query.instant("2026-11-18T12:00+02:00"), "2026-11-18T10:00:00.000Z");
  assert.equal(query.instant("90m", noon), "2026-11-18T10:30:00.000Z");
  assert.equal(query.instant("2026-13-40"), null);
  assert.deepEqual(query.toCli(query.parse("before:2d")), ["--older-than", "2d"]);
  const [, seconds] = query.toCli(query.parse("after:2026-11-18"));
  assert.match(seconds, /^\d+s$/);
});

test("operations at the end of a list get the index that they lead to", () => {
  const operations = [{ op: "add", path: "/m/-", value: 1 }, { op: "add", path: "/m/-", value: 2 }];
  assert.deepEqual(placed(operations, { m: [0, 1, 2] }).map(({ path }) => path), ["/m/1", "/m/2"]);
});

const entry = (seq, kind, more = {}) => ({ seq, kind, name: kind, at: new Date(seq * 1000).toISOString(), bytes: 1, owner: null, forks: [], changed: [], ...more });

test("messages know since which entry they are there, across a rollback", () => {
  const log = story([
    entry(1, "checkpoint", { changed: ["+messages"] }),
    entry(2, "checkpoint", { changed: ["messages +2"] }),
    entry(3, "checkpoint", { changed: ["messages +1"] }),
    entry(4, "rollback", { to: { seq: 1, name: "x" } }),
    entry(5, "checkpoint", { changed: ["messages +1"] }),
  ]);
  assert.deepEqual(since(log, 2, "messages", 4), [1, 2, 2, 3]);
  assert.deepEqual(since(log, 4, "messages", 2), [1, 5]);
});

test("rows of a log lie below each other, a death has one of its own", () => {
  const log = story([
    entry(1, "taken", { owner: "a" }),
    entry(2, "checkpoint", { owner: "a", changed: ["+x"] }),
    entry(30, "claimed", { owner: "b", from: { worker: "a", silent_since: new Date(5000).toISOString() } }),
  ]);
  const all = rows(log, false);
  assert.deepEqual(all.map(({ died }) => died), [0, 0, 25, 0]);
  all.slice(1).forEach((row, i) => assert.equal(row.top, all[i].top + all[i].height));
  assert.equal(rows(log, true).length, 1);
});

test("a tree marks what changed in place and folds the rest of a list", () => {
  const state = { list: [1, 2, 3, 4], left: 42, same: { deep: 1 } };
  const operations = [{ op: "add", path: "/list/3", value: 4 }, { op: "replace", path: "/left", value: 42, old: 488 }, { op: "remove", path: "/notes", old: "n" }];
  const signs = treeRows(state, operations, { fold: true, toggled: new Set() }).map(({ label, sign, same }) => (same ? same.join("–") : `${sign}${label}`));
  assert.deepEqual(signs, ["list", "0–2", "+3", "~left", "same", "−notes"]);
});

test("what changed in a long list or object is listed, however far behind it is", () => {
  const state = { list: Array.from({ length: 400 }, (_, n) => n), map: Object.fromEntries(Array.from({ length: 400 }, (_, n) => [`k${n}`, n])) };
  const operations = [{ op: "add", path: "/list/399", value: 399 }, { op: "replace", path: "/map/k300", value: 300, old: 0 }];
  const rows = (toggled, fold = true) => treeRows(state, operations, { fold, toggled: new Set(toggled) }).map(({ label, sign, same }) => (same ? same.join("–") : `${sign}${label}`));
  const folded = rows([]);
  assert.deepEqual(folded.slice(0, 4), ["list", "0–398", "+399", "map"]);
  assert.deepEqual(folded.slice(-3), ["k199", "~k300", "… 199 more"]);
  assert.deepEqual(rows(["/map"], false).slice(-4), ["199", "+399", "… 199 more", "map"]);
  assert.equal(rows(["/list/…", "/list…", "/map"]).length, 402);
});

test("words that stayed are not marked", () => {
  assert.deepEqual(wordDiff("direct, with a stop", "direct, without a stop"), [
    { kind: "same", text: "direct, " }, { kind: "old", text: "with" }, { kind: "new", text: "without" }, { kind: "same", text: " a stop" },
  ]);
});

test("orphans come before failures, and more than three of one reason are one row", () => {
  const item = (id, state, reason) => ({ session_id: id, state, reason, agent_type: "a", last_owner: "w", since: "2026-01-01T00:00:00Z" });
  const all = needs({ items: [item("f1", "failed", "x"), item("o", "orphaned", ""), ...[2, 3, 4].map((n) => item(`f${n}`, "failed", "x"))] }, []);
  assert.deepEqual(all.map(({ id }) => id), ["o", "f1", "f2", "f3", "f4"]);
  assert.deepEqual(grouped(all).map(({ need, more }) => [need.id, more]), [["o", 0], ["f1", 3]]);
});

test("events are filtered by tokens, and a bare word is a session", () => {
  assert.deepEqual(eventFilters("kind:failed lesson-1 agent:tutor"), { kind: ["failed"], session_id: ["lesson-1"], agent_type: ["tutor"] });
});

test("what is copied is one word of a shell, whatever it holds", () => {
  assert.deepEqual([quoted("a@3"), quoted("it's $HOME")], ["a@3", `'it'\\''s $HOME'`]);
});

test("parts of a large state stand in their place, and those read before them stay", () => {
  const outline = { docs: { "…": "list", size: 4, bytes: 900 }, "a/b": { inner: { "…": "object", size: 1, bytes: 12 } } };
  const first = withPart(outline, "/docs", { value: [1, 2], start: 0 });
  assert.deepEqual(withPart(first, "/docs", { value: [3, 4], start: 2 }).docs, [1, 2, 3, 4]);
  assert.deepEqual(withPart(outline, "/a~1b/inner", { value: { x: 1 }, start: 0 })["a/b"], { inner: { x: 1 } });
  assert.equal(outline.docs.size, 4);
});

test("entries that were read and come again as news are shown once, newest first", () => {
  const entry = (id, seq) => ({ session_id: id, seq });
  const list = merged([entry("a", 3)], [entry("a", 3), entry("b", 1), entry("a", 2)], 3);
  assert.deepEqual(list.map(({ session_id: id, seq }) => `${id}${seq}`), ["a3", "b1", "a2"]);
  assert.equal(merged([entry("a", 4)], list, 3).length, 3);
});

test("changes of labels name what was added, changed and removed, whatever the names", () => {
  assert.deepEqual(changesOf({ a: "1", b: "2", c: "3" }, { a: "1", b: "5", d: "4" }), { c: null, b: "5", d: "4" });
  assert.deepEqual(changesOf({ a: "1" }, { a: "1" }), {});
  assert.deepEqual(Object.entries(changesOf({}, JSON.parse('{"__proto__": "x"}'))), [["__proto__", "x"]]);
});

test("a rule says what it keeps and when", () => {
  assert.deepEqual([keeps({}), when({})], ["all", "–"]);
  const rule = { keep_last: 20, compress_after: 50, max_checkpoints: 100, after_end: 30 * 86400 };
  assert.equal(keeps(rule), "all up to 50; over that the first, the last 20, the newest of each name; at most 100");
  assert.equal(when(rule), "30 days after the end");
  assert.equal(keeps({ keep_first: 0, keep_latest_per_name: false, keep_last: 1, max_age: 86400 }), "the last; none older than 1 d 0 h");
});

test("a recipe names its keyframe and counts its patches", () => {
  const frames = [{ seq: 3, kind: "keyframe", bytes: 900 }, { seq: 5, kind: "short", bytes: 60 }, { seq: 7, kind: "long", bytes: 40 }];
  assert.equal(recipeText({ frames, stored_bytes: 1000, state_bytes: 1500, digest: "" }), "keyframe 3 and 2 patches, 1.0 KB stored for 1.5 KB");
  assert.equal(recipeText({ frames: frames.slice(0, 1), stored_bytes: 900, state_bytes: 900, digest: "" }), "keyframe 3, 900 B stored for 900 B");
});

test("labels of a chart stand beside their lines, inside it, and never one over another", () => {
  const places = (...xs) => labelPlaces(xs).map(({ row, left }) => `${row}${left ? "l" : "r"}`);
  assert.deepEqual(places(0.1, 0.9), ["0r", "0l"]);
  assert.deepEqual(places(0.3, 0.4), ["0r", "1r"]);
  assert.deepEqual(places(0.5, 0.95), ["0r", "1l"]);
  assert.deepEqual(places(0.95), ["0l"]);
});

test("needs keep their order while one of them has the focus; new ones come last, and what is settled goes", () => {
  const [a, b, c] = ["a", "b", "c"].map((id) => ({ id }));
  assert.deepEqual(inOrder([c, b, a], [a, { id: "gone" }, b]), [a, b, c]);
  assert.deepEqual(inOrder([], [a]), []);
});

test("a step that ended is open no more where it began", () => {
  const entry = (seq, kind, status) => ({ seq, kind, name: "book", step: { key: "1", status } });
  const known = [entry(1, "step_started", "running"), { seq: 2, kind: "checkpoint", name: "a", step: null }];
  const all = joined(known, [entry(3, "step_finished", "finished")]);
  assert.deepEqual(all.map(({ step }) => step?.status), ["finished", undefined, "finished"]);
  assert.equal(all[1], known[1]);
});
