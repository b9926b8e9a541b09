/** An error of the server. `problem` has all of its fields; `unavailable` with status 0 means that no answer came. */
export class SaveslotError extends Error {
    /** @param {Problem} problem @param {ErrorOptions & { retryAfter?: number }} [options] */
    constructor(problem: Problem, { retryAfter, ...options }?: ErrorOptions & {
        retryAfter?: number;
    });
    /** Seconds that the server asks for before another attempt. */
    retryAfter: number;
    code: "error" | "already_exists" | "cancelled" | "conflict" | "corrupt" | "forbidden" | "history_lost" | "invalid_input" | "invalid_transition" | "key_missing" | "lease_held" | "lease_lost" | "not_found" | "quota_exceeded" | "step_failed" | "step_unknown" | "too_large" | "unauthorized" | "unavailable" | "wrong_key";
    status: number;
    problem: Problem;
}
/** The sessions of one namespace at a server. */
export class SessionManager {
    /**
     * @param {string} url
     * @param {{ token?: string, namespace?: string, timeout?: number }} [options] `timeout`: milliseconds of one attempt
     */
    constructor(url: string, { token, namespace, timeout }?: {
        token?: string;
        namespace?: string;
        timeout?: number;
    });
    /** @param {NewSession} session @param {Pick<Write, "key" | "signal">} [write] @returns {Promise<Session>} */
    createSession(session: NewSession, write?: Pick<Write, "key" | "signal">): Promise<Session>;
    /** @param {string} id @param {SessionQuery} [query] @returns {Promise<Session>} */
    getSession(id: string, query?: SessionQuery): Promise<Session>;
    /** The state as of an entry. @param {string} id @param {DataQuery} [query] @returns {Promise<Data>} */
    getData(id: string, query?: DataQuery): Promise<Data>;
    /**
     * When it returns, the checkpoint is durable. The answer leaves out `data`.
     * @param {string} id @param {NewCheckpoint} checkpoint @param {Write} [write] @returns {Promise<SavedCheckpoint>}
     */
    checkpoint(id: string, checkpoint: NewCheckpoint, write?: Write): Promise<SavedCheckpoint>;
    /**
     * @param {string} id @param {string | number} to @param {Write & { seen: string }} write
     * @returns {Promise<SavedCheckpoint>}
     */
    rollback(id: string, to: string | number, write: Write & {
        seen: string;
    }): Promise<SavedCheckpoint>;
    /**
     * Set keys of its context, metadata and labels; null removes one.
     * @param {string} id @param {SessionChanges} changes @param {Omit<Write, "lease"> & { seen: string }} write
     * @returns {Promise<Session>}
     */
    updateSession(id: string, changes: SessionChanges, write: Omit<Write, "lease"> & {
        seen: string;
    }): Promise<Session>;
    /** @param {string} id @param {unknown} [result] any JSON value @param {Write} [write] @returns {Promise<Session>} */
    complete(id: string, result?: unknown, write?: Write): Promise<Session>;
    /** @param {string} id @param {string} error why, in a few words @param {Write} [write] @returns {Promise<Session>} */
    fail(id: string, error: string, write?: Write): Promise<Session>;
    /** Delete that version of it. @param {string} id @param {string} seen @returns {Promise<void>} */
    deleteSession(id: string, seen: string): Promise<void>;
    /**
     * Hold a session: until the lease ends, nobody else saves checkpoints.
     * @param {string} id @param {NewLease} [lease] @param {Pick<Write, "key" | "signal">} [write] @returns {Promise<Lease>}
     */
    lease(id: string, lease?: NewLease, write?: Pick<Write, "key" | "signal">): Promise<Lease>;
    /**
     * Take over sessions whose workers died. The same call with the same `key` claims nothing more, and renews no lease.
     * @param {Claim} [claim] @param {Pick<Write, "key" | "signal">} [write] @returns {Promise<Lease[]>}
     */
    claim(claim?: Claim, write?: Pick<Write, "key" | "signal">): Promise<Lease[]>;
    /** From here on it lasts `ttl` seconds again. @param {Lease} lease @returns {Promise<Lease>} */
    renew(lease: Lease): Promise<Lease>;
    /**
     * Give a lease up; with an `error`, another worker may claim the session.
     * @param {Lease} lease @param {string} [error] @returns {Promise<void>}
     */
    release(lease: Lease, error?: string): Promise<void>;
    /**
     * Do something once, under a lease: a finished step returns its stored result, and `work` is not called. `work` gets
     * the key by which what it calls can recognise a repetition, and the number of this attempt. The result is stored as
     * JSON. With `mode: "at_most_once"`, a step that was begun and not ended is `step_unknown`, unless `on_unknown` says
     * otherwise.
     * @param {Lease} lease @param {string} name
     * @param {(run: { idempotencyKey: string, attempt: number }) => unknown} work
     * @param {Omit<NewStep, "name"> & { signal?: AbortSignal }} [options]
     * @returns {Promise<any>}
     */
    step(lease: Lease, name: string, work: (run: {
        idempotencyKey: string;
        attempt: number;
    }) => unknown, { signal, ...options }?: Omit<NewStep, "name"> & {
        signal?: AbortSignal;
    }): Promise<any>;
    /**
     * What is appended, from now or after `after`, an event's `id`. A lost connection is taken up again after the last
     * event, at any server of the store, without a gap or a repeat. It ends when `signal` aborts.
     * @param {Omit<EventsQuery, "owners" | "digest"> & { signal?: AbortSignal }} [wanted]
     * @returns {AsyncGenerator<WatchEvent, void, void>}
     */
    watch({ after, signal, ...query }?: Omit<EventsQuery, "owners" | "digest"> & {
        signal?: AbortSignal;
    }): AsyncGenerator<WatchEvent, void, void>;
    /**
     * Any request that `/docs` shows, by its path after /v1. One that can be repeated safely is, while no answer comes:
     * GET, PUT, and whatever has an Idempotency-Key.
     * @param {string} method @param {string} path @param {Call} [call]
     * @returns {Promise<any>} the answer's JSON
     */
    request(method: string, path: string, { signal, ...call }?: Call): Promise<any>;
    #private;
}
/**
 * Options of a write. `seen`: the version that it follows, or "*"; the server refuses it if there is a newer one.
 * `key`: the same call with the same key gets the first answer. `lease`: the lease to write under.
 */
export type Write = {
    seen?: string;
    key?: string;
    lease?: Lease;
    signal?: AbortSignal;
};
/**
 * What a stream yields. `began` is the first event of a stream that begins now: whatever is appended after it, follows.
 */
export type WatchEvent = ServerEvent | {
    type: "began";
    id: string;
};
export type Call = {
    query?: object;
    body?: unknown;
    headers?: Record<string, string>;
    signal?: AbortSignal;
};
import type { Problem } from "./types.d.ts";
import type { NewSession } from "./types.d.ts";
import type { Session } from "./types.d.ts";
import type { SessionQuery } from "./types.d.ts";
import type { DataQuery } from "./types.d.ts";
import type { Data } from "./types.d.ts";
import type { NewCheckpoint } from "./types.d.ts";
import type { SavedCheckpoint } from "./types.d.ts";
import type { SessionChanges } from "./types.d.ts";
import type { NewLease } from "./types.d.ts";
import type { Lease } from "./types.d.ts";
import type { Claim } from "./types.d.ts";
import type { NewStep } from "./types.d.ts";
import type { EventsQuery } from "./types.d.ts";
import type { ServerEvent } from "./types.d.ts";
