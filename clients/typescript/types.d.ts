// Generated from the server's OpenAPI document by make_types.py. Do not edit.

/** A JSON object; datetime, bytes and UUID have a tagged form: `{"$saveslot": ["datetime", "2026-01-02T03:04Z"]}`. */
export type Data = Record<string, any>;

/** Parameters of `GET /v1/sessions/{id}`. */
export interface SessionQuery {
  /** `cached`: an answer that may be `max_age` seconds old. */
  level?: "cached" | "strong";
  max_age?: number;
  /** So many of its newest checkpoints come with it. */
  history?: number;
}

/** Parameters of `GET /v1/sessions/{id}/data`. */
export interface DataQuery {
  /** A ref: a name (its newest), a number, an id, `latest` or `~2`. */
  ref?: string;
  /** Only these keys; repeatable. */
  key?: string[];
  /** KEY=N, repeatable: only the last N items of that list. */
  last?: string[];
}

/** Parameters of `GET /v1/events`. */
export interface EventsQuery {
  /** Entries of these kinds; repeatable. */
  kind?: string[];
  /** Entries of these names; repeatable. */
  name?: string[];
  /** At most so many events per second. */
  max_rate?: number;
  /** The same as Last-Event-ID, which counts first. */
  after?: string;
  /** Sessions of these agent types; repeatable. */
  agent_type?: string[];
  /** These sessions; repeatable. */
  session_id?: string[];
  /** Also `event: late` and `event: orphaned` when owners fall silent, or (`on`) come back. */
  owners?: boolean;
  /** `1s`: instead of entries one `event: digest` that often, if something is new. */
  digest?: string;
}

/** What a stream sends; `id` is the cursor after it. */
export type ServerEvent =
  | { type: "entry"; id: string; data: Appended }
  | { type: "skipped"; id: string; data: Skipped }
  | { type: "reset"; id: string; data: Reset };

/** An entry that was appended, and what its session is like now. `owner`: the worker that holds it. */
export interface Appended {
  cursor: string;
  session_id: string;
  seq: number;
  kind: string;
  name: string;
  timestamp: string;
  agent_type: string;
  /** A state of sessions, or `deleted`. */
  state: string;
  owner: string | null;
  /** Null if it was not read. */
  bytes: number | null;
}

/** How many top-level keys a checkpoint added, removed and changed. */
export interface ChangedCounts {
  added: number;
  removed: number;
  changed: number;
}

export interface Claim {
  agent_type?: string | null;
  limit?: number;
  /** Also active sessions without an owner. */
  released?: boolean;
  /** Seconds to wait for a session. */
  wait?: number;
  /** The name of the worker, shown as the owner. */
  worker?: string;
  /** Null: no limit. */
  max_attempts?: number | null;
}

export interface Completion {
  /** Any JSON value; datetime, bytes and UUID stand in their tagged form. */
  result?: unknown;
}

export interface Failure {
  /** Why, in a few words. */
  error: string;
  details?: Data | null;
}

/** A session that continues from an entry of this one. */
export interface ForkLine {
  id: string;
  state: string;
  entries: number;
}

/** The worker that died, and its last heartbeat. */
export interface Former {
  worker: string;
  silent_since: string | null;
}

/** A lease on a session. `ttl`: seconds that it lasts from its last renewal. */
export interface Lease {
  session_id: string;
  lease_id: string;
  worker: string;
  fence: number;
  ttl: number;
  version: string;
  cancelled?: boolean;
}

/** An entry of a log, without the state that it leads to. */
export interface LogEntry {
  seq: number;
  version: string;
  kind: string;
  name: string;
  at: string;
  bytes: number;
  owner: string | null;
  fence: number;
  lease_change: "claimed" | "released" | "taken" | null;
  data_seq: number;
  metadata: unknown;
  changed: string[];
  changed_counts: ChangedCounts | null;
  state_bytes: number | null;
  pinned: boolean;
  thinned: boolean;
  damaged: string;
  step: StepMark | null;
  to: Target | null;
  from: Former | null;
  forks: ForkLine[];
  idempotency: string;
}

/**
 * A checkpoint. `data` is the whole state. `put`, `drop`, `append` and `cut` combine, and change single keys
 * of the newest state. `patch` excludes all others. Without any of them the state stays as it is.
 */
export interface NewCheckpoint {
  name: string;
  data?: Data | null;
  metadata?: Data | null;
  /** Values of keys. */
  put?: Data | null;
  /** Keys to remove. */
  drop?: string[] | null;
  /** Items to add to the ends of lists. */
  append?: Record<string, unknown[]> | null;
  /** How many items to take off the ends of lists. */
  cut?: Record<string, number> | null;
  patch?: Data[] | null;
}

export interface NewLease {
  /** The name of the worker, shown as the owner. */
  worker?: string;
  /** Seconds to wait for a session. */
  wait?: number;
}

/** A session to create. */
export interface NewSession {
  agent_type: string;
  user_id?: string;
  context?: Data | null;
  metadata?: Data | null;
  labels?: Record<string, string> | null;
  /** Generated if it is not given. */
  session_id?: string | null;
  /** A first checkpoint in the same write … */
  data?: Data | null;
  /** … and its name. */
  name?: string;
  /** Answer 200 with the session of that id if there is one. */
  exist_ok?: boolean;
  /** Failed attempts after which it fails; null: no limit. */
  max_attempts?: number | null;
}

/** A step to begin. Its name and key identify it for the session's whole life. */
export interface NewStep {
  name: string;
  key?: string | null;
  /** `at_most_once`: its start is in the log before it runs, and it is not run again after that. */
  mode?: "at_most_once" | "idempotent";
  /** What to do with one that started, and may have finished. */
  on_unknown?: "fail" | "retry" | "skip";
  /** Run it again if it has failed. */
  retry?: boolean;
  /** Attempts after the first one. */
  retries?: number;
  /** Seconds before the second attempt; then doubled. */
  backoff?: number;
}

/** The worker that holds a session. `left`: seconds until others may take it, 0 if they may. */
export interface Owner {
  worker: string;
  left: number;
  fence: number;
  since: string | null;
  /** In lists: the same as `left`. */
  left_s?: number;
  /** In lists: its last heartbeat. */
  silent_since?: string | null;
  /** In lists: silent for more than half of its TTL. */
  late?: boolean;
}

/** A page of a list. `next` is the cursor of the next page (`after=`), null on the last one. */
export interface PageOfLease {
  items: Lease[];
  next: string | null;
}

/** An error: `code` is stable, `message` says what to do; the fields after them depend on the code. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: 
    | "already_exists"
    | "cancelled"
    | "conflict"
    | "corrupt"
    | "error"
    | "forbidden"
    | "history_lost"
    | "invalid_input"
    | "invalid_transition"
    | "key_missing"
    | "lease_held"
    | "lease_lost"
    | "not_found"
    | "quota_exceeded"
    | "step_failed"
    | "step_unknown"
    | "too_large"
    | "unauthorized"
    | "unavailable"
    | "wrong_key";
  message: string;
  request_id?: string;
  /** invalid_input: the value that is not valid. */
  path?: string;
  reason?: string;
  /** conflict: the entry that the write follows. */
  seen?: number;
  /** conflict: the newest entry. */
  head?: number;
  /** 412: the version of the newest entry. */
  version?: string;
  /** 412: the entries after yours. */
  came?: LogEntry[];
  /** lease_held: the worker that holds the session. */
  owner?: string;
  since?: string;
  until?: string;
  limit?: number;
  size?: number;
  /** quota_exceeded: the namespace at its limit. */
  namespace?: string;
  /** quota_exceeded: which of its limits. */
  quota?: string;
  used?: number;
  /** Seconds; 0: time alone does not help. */
  retry_after?: number;
}

/** The events after the cursor are gone, and the stream goes on from now: load what you show again. */
export interface Reset {
  message: string;
}

export interface Rollback {
  /** A ref: a name (its newest), a number, an id, `latest` or `~2`. */
  to: string | number;
}

/** A checkpoint, rollback or lifecycle entry. `data` is null once it was thinned. */
export interface SavedCheckpoint {
  /** `<session_id>:<seq>` */
  id: string;
  seq: number;
  name: string;
  timestamp: string;
  metadata: Data;
  /** Names the newest entry: the session's ETag, for If-Match. */
  version: string;
  data?: Data | null;
}

/** A session. `context` and `metadata` are null if they are damaged, and empty while it is `locked`. */
export interface Session {
  session_id: string;
  agent_type: string;
  user_id: string;
  state: SessionState;
  created_at: string;
  last_heartbeat: string;
  context: Data | null;
  metadata: Data | null;
  labels: Record<string, string>;
  /** Names the newest entry: the session's ETag, for If-Match. */
  version: string;
  owner: Owner | null;
  /** Its worker died, or left by an error: it can be claimed. */
  orphaned: boolean;
  /** Sealed with a key that this server lacks. */
  locked: boolean;
  /** Only with `history`. */
  checkpoints?: SavedCheckpoint[];
  /** Why context and metadata cannot be read. */
  damage?: string;
}

/** JSON merge patches (RFC 7396): keys to set; null removes one. */
export interface SessionChanges {
  context?: Data | null;
  metadata?: Data | null;
  labels?: Record<string, string | null> | null;
}

export type SessionState = "active" | "completed" | "failed" | "paused";

/** How many events `max_rate` left out. */
export interface Skipped {
  n: number;
}

/** The step that an entry is about. An entry that started one has the status of the step's outcome. */
export interface StepMark {
  key: string | null;
  mode: "at_most_once" | "idempotent";
  status: "failed" | "finished" | "retry" | "retrying" | "running" | "unknown";
  started_at: string | null;
  duration_s: number | null;
  error: string;
  attempt: number;
  idempotency_key: string;
}

/** A step to run now, or one that has a result. `pause`: seconds to wait before this attempt. */
export interface StepRun {
  name: string;
  key: string | null;
  state: "finished" | "run";
  idempotency_key: string;
  attempt: number;
  pause?: number;
  result?: unknown;
}

/** The entry that a rollback went back to. */
export interface Target {
  seq: number;
  name: string;
}
