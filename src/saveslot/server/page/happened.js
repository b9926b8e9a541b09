// @ts-check
/** A card of what happened at an entry that carries no data: a step, a takeover, a failure. */
import { clock, plain, span } from "./format.js";
import { html } from "./view.js";

/** @param {import("./entries.js").Header} entry */
export function happened(entry) {
  const { kind, step, from, owner, fence, metadata = {} } = entry;
  if (kind === "claimed" && from?.worker) {
    return html`<div class="card tint-failed"><b>${plain(from.worker)} died.</b> ${from.silent_since ? `Its last heartbeat was at ${clock(Date.parse(from.silent_since) / 1000)}; ` : ""}${plain(owner ?? "")} claimed the session (fence ${fence}). Whatever ${plain(from.worker)} still sends is refused.</div>`;
  }
  if (kind === "claimed") return html`<div class="card"><b>Claimed by ${plain(owner ?? "")}</b> (fence ${fence}), after its owner left by an exception.</div>`;
  if (kind === "failed" || kind === "cancelled") return html`<div class="card tint-failed"><b>${kind === "failed" ? "Failed." : "Told to stop."}</b> ${plain(metadata.error ?? metadata.failure_reason ?? metadata.reason ?? "")}</div>`;
  if (kind === "released" && metadata.error) return html`<div class="card tint-failed"><b>Its owner left by an exception.</b> ${plain(metadata.error)}</div>`;
  if (!step) return null;
  const unknown = step.status === "unknown";
  const failed = kind === "step_failed";
  return html`<div class=${`card ${unknown ? "tint-orphaned" : failed ? "tint-failed" : ""}`}><b>Step ${plain(entry.name)}</b>${step.key ? html` <span class="mono">key=${plain(step.key)}</span>` : null} · ${step.mode === "at_most_once" ? "at most once" : "idempotent"}${step.duration_s ? ` · took ${span(step.duration_s)}` : ""}${step.attempt > 1 ? ` · attempt ${step.attempt}` : ""}
    ${failed ? html`<div class="s-failed">${plain(step.error)}</div>` : unknown ? html`<div>It began, and no entry tells that it ended.</div>` : null}
    <div class="soft">idempotency key <span class="mono">${plain(step.idempotency_key)}</span></div></div>`;
}
