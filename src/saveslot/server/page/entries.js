// @ts-check
/**
 * What a session's log headers mean together: who owned it when, which entries a rollback left behind, what became of
 * each step. Pure; tape, log and tabs all read this.
 */

/**
 * @typedef {object} Header a log header as the API sends it
 * @property {number} seq
 * @property {string} kind
 * @property {string} name
 * @property {string} at
 * @property {number} bytes
 * @property {string | null} owner
 * @property {number} [data_seq] the entry whose data is the state here
 * @property {number | null} [state_bytes]
 * @property {string[]} [changed]
 * @property {{added: number, removed: number, changed: number} | null} [changed_counts]
 * @property {boolean} [pinned]
 * @property {boolean} [thinned]
 * @property {string} [damaged]
 * @property {Record<string, any>} [metadata]
 * @property {Step | null} [step]
 * @property {{seq: number, name: string} | null} [to]
 * @property {{worker: string | null, silent_since: string | null} | null} [from]
 * @property {{id: string, state: string, entries: number}[]} [forks]
 * @property {number} [fence]
 */

/** @typedef {{key: string | null, mode: "at_most_once" | "idempotent", status: "running" | "unknown" | "retrying" | "retry" | "finished" | "failed", started_at: string | null, duration_s: number | null, error: string, attempt: number, idempotency_key: string}} Step */

/**
 * @typedef {{worker: string, color: number, first: number, last: number, end: "let go" | "ended" | "died" | "held" | "orphaned", silentSince: number}} Clip
 * `first` and `last` are indexes of entries; `silentSince` is NaN unless the worker died.
 */

/**
 * @typedef {object} Story
 * @property {readonly Header[]} entries
 * @property {Clip[]} clips
 * @property {Map<string, number>} colors of owners, 0 to 5 by order of appearance
 * @property {Set<number>} behind seqs that a rollback left behind
 * @property {{from: number, to: number}[]} rollbacks indexes
 * @property {{start: number, end: number}[]} pauses indexes of an entry that paused and of the one that ended it
 * @property {Map<number, number>} started index of the start of a step by the index of its end
 */

export const COLORS = 6;
const TAKING = new Set(["taken", "claimed"]);
const ENDING = new Set(["completed", "failed", "tombstone"]);
export const STEPS = new Set(["step_started", "step_finished", "step_failed"]);
export const CHECKPOINTS = new Set(["checkpoint", "rollback"]);

/** @param {string | null | undefined} text */
const at = (text) => (text ? Date.parse(text) / 1000 : NaN);

/**
 * @param {readonly Header[]} entries oldest first
 * @param {{orphaned?: boolean, silentSince?: string | null}} [session]
 * @returns {Story}
 */
export function story(entries, { orphaned = false, silentSince = null } = {}) {
  /** @type {Clip[]} */
  const clips = [];
  const colors = new Map();
  const behind = new Set();
  /** @type {Story["rollbacks"]} */
  const rollbacks = [];
  const pauses = [];
  const started = new Map();
  const running = new Map();
  const bySeq = new Map(entries.map((entry, i) => [entry.seq, i]));
  /** @type {Clip | null} */
  let clip = null;
  let paused = -1;
  entries.forEach((entry, i) => {
    const { kind } = entry;
    const worker = entry.owner;
    if (TAKING.has(kind) || (!clip && worker)) {
      if (clip) {
        clip.end = "died";
        clip.silentSince = at(entry.from?.silent_since);
      }
      if (worker) {
        if (!colors.has(worker)) colors.set(worker, colors.size % COLORS);
        clip = { worker, color: colors.get(worker), first: i, last: i, end: "held", silentSince: NaN };
        clips.push(clip);
      }
    }
    if (clip && (worker === clip.worker || kind === "released")) clip.last = i;
    if (clip && (kind === "released" || ENDING.has(kind))) {
      clip.last = i;
      clip.end = kind === "released" ? "let go" : "ended";
      clip = null;
    }
    if (kind === "rollback" && entry.to) {
      const target = bySeq.get(entry.to.seq);
      if (target !== undefined) {
        rollbacks.push({ from: i, to: target });
        for (let k = target + 1; k < i; k++) behind.add(entries[k].seq);
      }
    } else if (kind === "paused") paused = i;
    else if (paused >= 0 && (kind === "resumed" || ENDING.has(kind))) {
      pauses.push({ start: paused, end: i });
      paused = -1;
    } else if (STEPS.has(kind)) {
      const key = `${entry.name}\n${entry.step?.key ?? ""}`;
      if (kind === "step_started") running.set(key, i);
      else {
        if (running.has(key)) started.set(i, running.get(key));
        running.delete(key);
      }
    }
  });
  if (paused >= 0) pauses.push({ start: paused, end: entries.length });
  if (clip && orphaned) {
    /** @type {Clip} */ (clip).end = "orphaned";
    /** @type {Clip} */ (clip).silentSince = at(silentSince);
  }
  return { entries, clips, colors, behind, rollbacks, pauses, started };
}

const KINDS = /** @type {Record<string, string>} */ ({
  step_started: "step started",
  step_finished: "step finished",
  step_failed: "step failed",
  tombstone: "deleted",
});

/** The entry's kind in words. @param {string} kind */
export const kindText = (kind) => KINDS[kind] ?? kind;

/** What an entry is called where its kind stands beside it. @param {Header} entry */
export function title(entry) {
  if (entry.kind === "rollback") return `↩ ${entry.to?.name ?? entry.name}`;
  return CHECKPOINTS.has(entry.kind) || STEPS.has(entry.kind) || entry.kind === "record" ? entry.name : kindText(entry.kind);
}

/** What stands behind the name in a log line: an error, a key, who took it. @param {Header} entry */
export function remark(entry) {
  const { kind, step, metadata = {} } = entry;
  if (kind === "step_failed") return step?.error ?? "";
  if (step) return [step.key ? `key=${step.key}` : "", kind === "step_started" && step.status !== "running" ? "began" : ""].filter(Boolean).join(" ");
  if (kind === "taken" || kind === "claimed") return entry.owner ?? "";
  if (kind === "failed") return String(metadata.error ?? metadata.failure_reason ?? metadata.reason ?? "");
  if (kind === "released" || kind === "cancelled" || kind === "paused") return String(metadata.error ?? metadata.reason ?? "");
  return "";
}
