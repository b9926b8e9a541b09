// @ts-check
/** Beside the state: what would happen next, all that can be done, what is known of the session, and its audit. */
import * as actions from "./actions.js";
import { apiUrl } from "./api.js";
import { actionButton } from "./button.js";
import { factsView } from "./facts.js";
import { plain } from "./format.js";
import { nextSteps } from "./next_steps.js";
import { outlookView } from "./outlook.js";
import { verdict } from "./trail.js";
import { html } from "./view.js";

/** @param {import("./session_source.js").SessionSource} source @param {import("./session.js").Verbs} verbs */
export function side({ id, path, session, log, audit, overview, entries }, verbs) {
  const subject = verbs.subject();
  const { state, orphaned, outlook } = subject;
  const at = verbs.target();
  return html`<aside class="side"><section class="panel pad" aria-label="Outlook and actions">
      ${outlook ? outlookView(outlook, orphaned) : null}
      <div class="actions">
        ${actionButton("Roll back", "r", verbs.rollbackWhy(), verbs.rollback)}${actionButton("Fork", "f", actions.why(subject, "fork"), verbs.fork)}
        ${state === "paused" ? actionButton("Resume", "p", actions.why(subject, "resume"), verbs.pause) : state === "failed" ? actionButton("Recover…", "", actions.why(subject, "recover"), () => actions.recover(subject)) : actionButton("Pause", "p", actions.why(subject, "pause"), verbs.pause)}
        ${actionButton(at?.pinned ? "Unpin" : "Pin", ".", at ? actions.why(subject, "pin") : "no data here", verbs.pin)}
        ${(orphaned ? [] : (outlook?.steps.unknown ?? [])).map((step) => actionButton(`Decide on ${plain(step.name)}…`, "", actions.why(subject, "decide"), () => actions.decide(subject, step), "main"))}
        ${subject.owner && !orphaned ? actionButton("Release…", "", actions.why(subject, "release"), () => actions.release(subject)) : null}
        ${state === "active" || state === "paused" ? actionButton("Cancel…", "", actions.why(subject, "cancel"), () => actions.cancel(subject)) : null}
        ${actionButton("Labels…", "l", actions.why(subject, "update"), verbs.label)}
        <a class="button" href=${apiUrl(`${path}/export`)} download=${`${id}.json`}>Export</a>
        ${actionButton("Delete…", "", actions.why(subject, "delete"), () => actions.remove(subject), "danger")}
        ${actionButton("Erase…", "", actions.why(subject, "erase", "admin"), () => actions.erase(subject), "danger")}
      </div></section>
      ${nextSteps(subject, session.value.agent_type)}
      ${factsView(session.value, entries(), log.total.value, log.sealed.value, overview.value)}
      <section class="panel pad" aria-label="Audit">${audit.trail.value ? html`<p>${verdict(audit.trail.value)}</p>` : html`<button @click=${audit.load}>Verify the log</button>`}${audit.trouble.value ? html`<p class="trouble">${audit.trouble.value}</p>` : null}</section></aside>`;
}
