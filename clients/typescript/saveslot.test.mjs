/** The client against a real `saveslot serve`, at times through a proxy that cuts its connections. */
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import { SaveslotError, SessionManager } from "./saveslot.mjs";

const folder = mkdtempSync(join(tmpdir(), "saveslot-"));
const running = new Set();
let url, sessions;

/** Start a server; returns its URL. */
async function serve(store, ...options) {
  const argv = ["serve", "--store", join(folder, store), "--port", "0", ...options];
  const child = spawn("saveslot", argv, { stdio: ["ignore", "pipe", "ignore"] });
  running.add(child);
  for await (const line of createInterface(child.stdout)) return line.split(" ").at(-1);
  throw new Error("the server did not start");
}

/** A proxy before a server. `cut` ends all connections; for so many answers as `deaf` says, it does so instead of passing them on. */
async function proxied(target) {
  const { port, hostname } = new URL(target);
  const sockets = new Set();
  const proxy = {
    deaf: 0,
    cut: () => sockets.forEach((socket) => socket.destroy()),
    close: () => (proxy.cut(), server.close()),
  };
  const server = net.createServer((near) => {
    const far = net.connect(port, hostname);
    for (const [socket, other] of [[near, far], [far, near]]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => (sockets.delete(socket), other.destroy()));
    }
    near.pipe(far);
    far.on("data", (piece) => {
      if (proxy.deaf > 0) {
        proxy.deaf--;
        near.destroy();
      } else near.write(piece);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  proxy.url = `http://127.0.0.1:${server.address().port}`;
  return proxy;
}

/** The error that a call is refused with. */
const refusal = (call) => call.then(() => assert.fail("it was not refused"), (error) => error);

before(async () => {
  url = await serve("agents.db");
  sessions = new SessionManager(url);
});

after(async () => {
  for (const child of running) {
    child.kill();
    if (child.exitCode === null) await once(child, "exit");
  }
  rmSync(folder, { recursive: true });
});

test("what was saved is read, changed and completed", async () => {
  const created = await sessions.createSession({ agent_type: "tutor", session_id: "a/b ü", data: { messages: ["1/2?"] } });
  assert.equal(created.state, "active");
  const saved = await sessions.checkpoint("a/b ü", { name: "answered", append: { messages: ["5/6"] } });
  assert.deepEqual([saved.seq, saved.data], [3, undefined]);
  assert.deepEqual(await sessions.getData("a/b ü"), { messages: ["1/2?", "5/6"] });
  assert.deepEqual(await sessions.getData("a/b ü", { ref: "created", key: ["messages"] }), { messages: ["1/2?"] });
  await sessions.rollback("a/b ü", "created", { seen: saved.version });
  const session = await sessions.updateSession("a/b ü", { labels: { term: "1" } }, { seen: "*" });
  assert.deepEqual(session.labels, { term: "1" });
  assert.equal((await sessions.complete("a/b ü", { grade: "A" }, { seen: session.version })).state, "completed");
  assert.equal((await sessions.request("GET", "/sessions", { query: { state: ["completed"], limit: 10 } })).items.length, 1);
  await sessions.deleteSession("a/b ü", (await sessions.getSession("a/b ü")).version);
  assert.equal((await refusal(sessions.getSession("a/b ü"))).code, "not_found");
});

test("a write that follows an older version is refused with what came since, and stores nothing", async () => {
  const { version } = await sessions.createSession({ agent_type: "tutor", session_id: "conflict" });
  const first = await sessions.checkpoint("conflict", { name: "mine", data: { n: 1 } }, { seen: version });
  const error = await refusal(sessions.checkpoint("conflict", { name: "late", data: { n: 2 } }, { seen: version }));
  assert.ok(error instanceof SaveslotError);
  assert.deepEqual([error.status, error.code, error.problem.version], [412, "conflict", first.version]);
  assert.deepEqual(error.problem.came.map((entry) => entry.name), ["mine"]);
  assert.deepEqual(await sessions.getData("conflict"), { n: 1 });
  await sessions.checkpoint("conflict", { name: "after", data: { n: 2 } }, { seen: error.problem.version });
});

test("errors are values with a code, a status and fields", async () => {
  await sessions.createSession({ agent_type: "tutor", session_id: "once" });
  const there = await refusal(sessions.createSession({ agent_type: "other", session_id: "once" }));
  assert.deepEqual([there.status, there.code], [409, "already_exists"]);
  const invalid = await refusal(sessions.checkpoint("once", { name: "cut", cut: { items: 2 } }));
  assert.deepEqual([invalid.status, invalid.code, invalid.problem.path], [422, "invalid_input", "cut.items"]);
  assert.equal((await refusal(sessions.getSession(".."))).code, "invalid_input");
  await sessions.createSession({ agent_type: "tutor", session_id: "facets" });
  assert.equal((await sessions.getSession("facets")).session_id, "facets");
  const nobody = net.createServer().listen(0);
  await once(nobody, "listening");
  const { port } = nobody.address();
  nobody.close();
  const away = await refusal(new SessionManager(`http://127.0.0.1:${port}`).getSession("once"));
  assert.deepEqual([away.status, away.code], [0, "unavailable"]);
});

test("a write whose answers were lost is done once", async () => {
  await sessions.createSession({ agent_type: "tutor", session_id: "lost" });
  const proxy = await proxied(url);
  try {
    proxy.deaf = 3;
    const saved = await new SessionManager(proxy.url).checkpoint("lost", { name: "saved", append: { items: [1] } });
    assert.deepEqual([proxy.deaf, saved.seq], [0, 2]);
    assert.deepEqual(await sessions.getData("lost"), { items: [1] });
  } finally {
    proxy.close();
  }
  const answers = [1, 2].map(() => sessions.checkpoint("lost", { name: "same", append: { items: [2] } }, { key: "k1" }));
  const [one, two] = await Promise.all(answers);
  assert.equal(one.version, two.version);
  assert.deepEqual(await sessions.getData("lost"), { items: [1, 2] });
});

test("a stream goes on over cut connections without a gap or a repeat", async () => {
  await sessions.createSession({ agent_type: "tutor", session_id: "watched" });
  const proxy = await proxied(url);
  const leaving = new AbortController();
  const names = [];
  try {
    const wanted = { session_id: ["watched"], kind: ["checkpoint"], signal: leaving.signal };
    for await (const event of new SessionManager(proxy.url).watch(wanted)) {
      assert.ok(event.type === "began" || event.type === "entry", event.type);
      if (event.type === "entry") names.push(event.data.name);
      if (names.length === 30) leaving.abort();
      else if (names.length % 5 === 0) {
        proxy.cut();
        for (let n = 0; n < 5; n++) await sessions.checkpoint("watched", { name: `n${names.length + n}` });
      }
    }
  } finally {
    proxy.close();
  }
  assert.deepEqual(names, Array.from({ length: 30 }, (_, n) => `n${n}`));
});

test("a stream begins after the event whose id it is given", async () => {
  await sessions.createSession({ agent_type: "tutor", session_id: "again" });
  const take = async (wanted, until) => {
    const ids = {};
    for await (const event of sessions.watch({ session_id: ["again"], kind: ["checkpoint"], ...wanted })) {
      if (event.type === "began") for (const name of ["one", "two", "three"]) await sessions.checkpoint("again", { name });
      if (event.type === "entry") ids[event.data.name] = event.id;
      if (until in ids) return ids;
    }
  };
  const ids = await take({}, "three");
  assert.deepEqual(Object.keys(ids), ["one", "two", "three"]);
  assert.deepEqual(await take({ after: ids.one }, "three"), { two: ids.two, three: ids.three });
  assert.equal((await refusal(sessions.watch({ after: "nothing" }).next())).code, "invalid_input");
  const other = new SessionManager(await serve("other.db"));
  for await (const event of other.watch({ after: ids.three })) {
    assert.equal(event.type, "reset");
    break;
  }
});

test("only the holder of a lease saves, until it gives the lease up", async () => {
  await sessions.createSession({ agent_type: "tutor", session_id: "held" });
  const lease = await sessions.lease("held", { worker: "runner-1" });
  const refused = await refusal(sessions.checkpoint("held", { name: "late" }));
  assert.deepEqual([refused.status, refused.code], [409, "lease_held"]);
  assert.match(refused.problem.owner, /^runner-1/);
  assert.equal((await refusal(sessions.lease("held"))).code, "lease_held");
  const renewed = await sessions.renew(lease);
  await sessions.checkpoint("held", { name: "mine", data: { n: 1 } }, { lease: renewed, seen: renewed.version });
  await sessions.release(lease, "the model is down");
  assert.equal((await refusal(sessions.checkpoint("held", { name: "mine" }, { lease }))).code, "lease_lost");
  const [claimed] = await sessions.claim({ agent_type: "tutor", wait: 5, worker: "runner-2" });
  assert.equal(claimed.session_id, "held");
  assert.equal((await sessions.fail("held", "gave up", { lease: claimed })).state, "failed");
});

test("a step under a lease runs once, whoever asks for it again", async () => {
  await sessions.createSession({ agent_type: "tutor", session_id: "steps" });
  const first = await sessions.lease("steps");
  const keys = [];
  const pay = ({ idempotencyKey }) => (keys.push(idempotencyKey), { paid: keys.length });
  assert.deepEqual(await sessions.step(first, "pay", pay, { key: "7/a" }), { paid: 1 });
  assert.deepEqual(await sessions.step(first, "pay", pay, { key: "7/a" }), { paid: 1 });
  const attempts = [];
  const shaky = ({ attempt }) => {
    attempts.push(attempt);
    if (attempt < 3) throw new Error("busy");
  };
  assert.equal(await sessions.step(first, "mail", shaky, { retries: 2, backoff: 0.01 }), null);
  assert.deepEqual(attempts, [1, 2, 3]);
  const broken = () => Promise.reject(new Error("no"));
  assert.equal((await refusal(sessions.step(first, "broken", broken))).message, "no");
  assert.equal((await refusal(sessions.step(first, "broken", () => 1))).code, "step_failed");
  assert.equal(await sessions.step(first, "broken", () => 1, { retry: true }), 1);

  // A worker dies within a step that runs at most once: after the takeover nobody runs it again unasked.
  const proxy = await proxied(url);
  const dying = new SessionManager(proxy.url, { timeout: 1000 }).step(first, "charge", () => proxy.close(), { mode: "at_most_once" });
  assert.equal((await refusal(dying)).code, "unavailable");
  await sessions.release(first, "it died");
  const [second] = await sessions.claim({ agent_type: "tutor", wait: 5 });
  assert.equal((await refusal(sessions.step(second, "charge", () => 1, { mode: "at_most_once" }))).code, "step_unknown");
  assert.equal(await sessions.step(second, "charge", () => 2, { mode: "at_most_once", on_unknown: "retry" }), 2);
  assert.deepEqual(await sessions.step(second, "pay", pay, { key: "7/a" }), { paid: 1 });
  assert.equal(keys.length, 1);
  await sessions.release(second);
});

test("a token opens its namespaces only, and what is above its rate waits", async () => {
  const argv = ["token", "create", "own", "--scope", "write", "--namespace", "school-7", "--store", join(folder, "closed.db")];
  const token = execFileSync("saveslot", argv, { encoding: "utf8" }).trim();
  const closed = await serve("closed.db", "--token-required", "--rate", "2");
  assert.equal((await refusal(new SessionManager(closed).getSession("s"))).code, "unauthorized");
  assert.equal((await refusal(new SessionManager(closed, { token }).getSession("s"))).code, "forbidden");
  const school = new SessionManager(`${closed}/`, { token, namespace: "school-7" });
  await school.createSession({ agent_type: "tutor", session_id: "s" });
  for (let n = 0; n < 7; n++) await school.checkpoint("s", { name: "more", append: { items: [n] } });
  assert.deepEqual(await school.getData("s"), { items: [0, 1, 2, 3, 4, 5, 6] });
});
