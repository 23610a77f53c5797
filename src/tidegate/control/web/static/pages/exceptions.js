// Exceptions: what failed, with the user's traceback, the record, and the command that stops there.
import { marked, page, route, to } from "../api.js";
import { Ago, Answer, Command, Empty, Facts, Fold, html, memo, useState, When } from "../parts/ui.js";
import { plural } from "../parts/format.js";

export function ExceptionsPage() {
  const { details, card } = page.value;
  const { job } = route.value;
  const wanted = marked.value;
  const [all, setAll] = useState(false);
  const newest = [...details.exceptions].reverse();
  const named = details.operators.find((o) => o.id === wanted.operator)?.name;
  const kinds = new Set(newest.map((e) => `${e.kind} ${e.message}`)).size;
  const guilty = (e) => (named !== undefined && e.operator === named && (wanted.subtask === undefined || e.subtask === wanted.subtask)) || (wanted.key !== undefined && e.key === wanted.key);
  return html`
    <${Answer} ask="Why did it fail?">
      ${!newest.length ? "It has not failed." : html`<b>${newest[0].operator ? `${newest[0].operator} raised ${newest[0].kind}` : newest[0].kind}</b>, <${Ago} ms=${newest[0].at_ms} />. ${newest.length > 1 ? `It failed ${newest.length} times, for ${plural(kinds, "different reason")}; ${plural(card.restarts, "restart")} followed.` : ""}`}
    <//>
    ${!newest.length && html`<${Empty}>Exceptions of user code appear here with their traceback, the record, and the command that runs the round again.<//>`}
    ${newest.slice(0, all ? undefined : 10).map((e, i) => html`<${One} key=${`${e.at_ms} ${e.attempt} ${e.message}`} e=${e} job=${job} open=${i === 0} mark=${guilty(e) && newest.findIndex(guilty) === i} parallelism=${details.operators.find((o) => o.name === e.operator)?.parallelism} />`)}
    ${newest.length > 10 && html`<button type="button" class="more" onClick=${() => setAll(!all)}>${all ? "Show 10" : `Show all ${newest.length}`}</button>`}`;
}

const One = memo(({ e, job, open, mark, parallelism }) => html`<article class="exception ${mark ? "guilty" : ""}" aria-current=${mark ? "true" : undefined}>
    <div class="head"><h2>${e.kind}</h2><span class="dim">attempt ${e.attempt}, <${When} ms=${e.at_ms} /></span></div>
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
  </article>`);
