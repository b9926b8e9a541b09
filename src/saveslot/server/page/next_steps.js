// @ts-check
/** What a person can do for an orphan or a failed session. */
import * as actions from "./actions.js";
import { actionButton } from "./button.js";
import { cli, copyText } from "./copy.js";
import { plain } from "./format.js";
import { each, html } from "./view.js";

/** @typedef {{name: string, text: unknown, button?: unknown, command?: string, code?: string}} Step */

/** @param {import("./actions.js").Subject} subject @param {string} agent @returns {Step[]} */
function steps(subject, agent) {
  const { id, state, orphaned, outlook } = subject;
  const unknown = outlook?.steps.unknown ?? [];
  const decide = unknown.map((step) => ({
    name: `decide ${step.name} ${step.key}`,
    text: html`Find out whether <b>${plain(step.name)}</b> happened, and say so: its next owner gets <code>StepUnknown</code> otherwise.`,
    button: actionButton(`Decide on ${plain(step.name)}…`, "", actions.why(subject, "decide"), () => actions.decide(subject, step)),
  }));
  const recover = state === "failed" ? [{ name: "recover", text: "Make it active again; its state stays as it is.", button: actionButton("Recover…", "", actions.why(subject, "recover"), () => actions.recover(subject)) }] : [];
  const takers = orphaned
    ? [{ name: "keeper", text: html`A worker takes it over by <code>claim()</code>, or a keeper starts your agent for it:`, command: cli(["keeper", "--run", "python agent.py {id}", "--agent", agent]) }]
    : [];
  const hold = { name: "hold", text: orphaned ? "Or take over just this one, in your agent's code:" : "Then a worker goes on with it, in your agent's code:", code: `async with sessions.hold(${JSON.stringify(id)}) as held:` };
  const release = orphaned ? [{ name: "release", text: "If it can wait, let it go: it stays active, held by no worker.", button: actionButton("Release…", "", actions.why(subject, "release"), () => actions.release(subject)) }] : [];
  const end = orphaned ? [{ name: "cancel", text: "If it need not go on, end it: it fails with the reason cancelled.", button: actionButton("Cancel…", "", actions.why(subject, "cancel"), () => actions.cancel(subject)) }] : [];
  return [...decide, ...recover, ...takers, hold, ...release, ...end];
}

/** @param {string} text @param {string} what */
const copied = (text, what) => html`<div class="code boxed mono"><span>${text}</span><button class="quiet" @click=${() => copyText(text, what)}>copy</button></div>`;

/** @param {import("./actions.js").Subject} subject @param {string} agent its agent type */
export function nextSteps(subject, agent) {
  if (!subject.orphaned && subject.state !== "failed") return null;
  return html`<section class="panel pad next-steps" aria-label="What next"><h2>What next</h2><ol>${each(steps(subject, agent), ({ name }) => name, ({ text, button, command, code }) => html`<li><p>${text}</p>${command ? copied(command, "the command") : null}${code ? copied(code, "the line") : null}${button}</li>`)}</ol></section>`;
}
