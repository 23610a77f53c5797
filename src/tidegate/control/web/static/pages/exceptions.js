// Exceptions: what failed, with the user's traceback, the record, and the command that stops there.
import { marked, page, route, to } from "../api.js";
import { Ago, Answer, Command, Empty, Facts, Fold, html, When } from "../parts/ui.js";
import { plural } from "../parts/format.js";

/** Failures with the same reason, the latest first. */
function reasonsOf(exceptions) {
  const reasons = new Map();
  for (const e of [...exceptions].reverse()) {
    const reason = JSON.stringify([e.kind, e.message, e.operator]);
    reasons.set(reason, [...(reasons.get(reason) ?? []), e]);
  }
  return [...reasons];
}

export function ExceptionsPage() {
  const { details, card } = page.value;
  const { job } = route.value;
  const wanted = marked.value;
  const reasons = reasonsOf(details.exceptions);
  const newest = reasons[0]?.[1][0];
  const times = details.exceptions.length;
  const named = details.operators.find((o) => o.id === wanted.operator);
  const guilty = ([, [e]]) => (named && [named.name, named.label, named.uid].includes(e.operator) && (wanted.subtask === undefined || e.subtask === wanted.subtask)) || (wanted.key !== undefined && e.key === wanted.key);
  const first = reasons.find(guilty) ?? (wanted.finding && reasons[0]);
  return html`
    <${Answer} ask="Why did it fail?">
      ${!newest ? "It has not failed." : html`<b>${newest.operator ? `${newest.operator} raised ${newest.kind}` : newest.kind}</b>, <${Ago} ms=${newest.at_ms} />. ${times > 1 ? `It failed ${times} times, ${reasons.length === 1 ? "always for the same reason" : `for ${reasons.length} different reasons`}; ${plural(card.restarts, "restart")} followed.` : ""}`}
    <//>
    ${!newest && html`<${Empty}>Exceptions of user code appear here with their traceback, the record, and the command that runs the round again.<//>`}
    ${reasons.map((r, i) => html`<${One} key=${r[0]} all=${r[1]} job=${job} open=${i === 0} mark=${r === first} parallelism=${details.operators.find((o) => [o.name, o.label, o.uid].includes(r[1][0].operator))?.parallelism} />`)}`;
}

function One({ all, job, open, mark, parallelism }) {
  const e = all[0];
  return html`<article class="exception ${mark ? "guilty" : ""}" aria-current=${mark ? "true" : undefined}>
    <div class="head"><h2>${e.kind}</h2><span class="dim">attempt ${e.attempt}, <${When} ms=${e.at_ms} /></span>${all.length > 1 && html`<span class="badge">${all.length} times</span>`}</div>
    <p class="message">${e.message}</p>
    <${Facts} of=${[
      e.operator !== null && ["Operator", e.operator],
      e.subtask !== null && ["Subtask", `${e.subtask + 1}${parallelism ? `/${parallelism}` : ""}`],
      e.key !== null && ["Key", html`<code>${e.key}</code>`],
      e.checkpoint_id !== null && ["Checkpoint", html`<a href=${to(job, "checkpoints", e.checkpoint_id)}>${e.checkpoint_id}</a>`],
    ]} />
    ${e.record !== null && html`<h3>Record</h3><pre tabindex="0" class="low">${e.record}</pre>`}
    ${e.debug_command !== null && html`<h3>Stop there</h3><${Command} text=${e.debug_command} />`}
    ${e.traceback && html`<${Fold} open=${open || mark} title="Traceback"><pre tabindex="0">${e.traceback}</pre><//>`}
    ${all.length > 1 && html`<${Fold} title="When it happened"><ol class="story">${all.map((x) => html`<li key=${x.at_ms}>attempt ${x.attempt}, <${When} ms=${x.at_ms} /></li>`)}</ol><//>`}
  </article>`;
}
