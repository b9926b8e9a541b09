/** A program that uses the client: `make test-typescript` checks its types. */
import { SaveslotError, SessionManager, type WatchEvent } from "./saveslot.mjs";
import type { Lease, LogEntry } from "./types.d.ts";

interface Lesson {
  messages: string[];
}

const sessions = new SessionManager("http://127.0.0.1:7788", { token: "…", namespace: "school-7" });
const lesson: Lesson = { messages: [] };
const { version, state } = await sessions.createSession({ agent_type: "tutor", session_id: "lesson-1", data: lesson });
const active: boolean = state === "active";
try {
  await sessions.checkpoint("lesson-1", { name: "asked", append: { messages: ["1/2 + 1/3?"] } }, { seen: version });
} catch (error) {
  if (!(error instanceof SaveslotError && error.code === "conflict")) throw error;
  const came: LogEntry[] = error.problem.came ?? [];
  console.log(active, came.length);
  // @ts-expect-error: not a code
  console.log(error.code === "conflicted");
}
const lease: Lease = await sessions.lease("lesson-1", { worker: "runner-1" });
await sessions.rollback("lesson-1", "asked", { seen: lease.version, lease });

async function last(events: AsyncIterable<WatchEvent>): Promise<string> {
  for await (const event of events) {
    if (event.type === "entry") return event.data.session_id;
    if (event.type === "skipped") console.log(event.data.n);
    // @ts-expect-error: the event that begins a stream has no data
    if (event.type === "began") console.log(event.data);
  }
  return "";
}
console.log(await last(sessions.watch({ agent_type: ["tutor"] })));

// @ts-expect-error: agent_type is missing
await sessions.createSession({ session_id: "lesson-2" });
// @ts-expect-error: not a field of a checkpoint
await sessions.checkpoint("lesson-1", { name: "asked", appended: {} });
// @ts-expect-error: a rollback says which version it has seen
await sessions.rollback("lesson-1", "asked");
