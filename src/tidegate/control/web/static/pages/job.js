// The frame of a job: what it is, what is wrong with it, its pages; and the overview.
import { gone, linkOf, now, page, route, to } from "../api.js";
import { Ago, Answer, Empty, Facts, html, memo, Pill, Section, stateOf, When } from "../parts/ui.js";
import { clock, count, duration, median, percent, plural, rate, span } from "../parts/format.js";
import { Table } from "../parts/table.js";
import { Plot } from "../parts/plot.js";
import { Lazy } from "../parts/lazy.js";

const PAGES = [
  ["overview", "Overview"], ["checkpoints", "Checkpoints", "CheckpointsPage"], ["rounds", "Rounds", "RoundsPage"], ["graph", "Graph", "GraphPage"],
  ["exceptions", "Exceptions", "ExceptionsPage"], ["state", "State", "StatePage"], ["actions", "Actions", "ActionsPage"], ["configuration", "Configuration", "ConfigurationPage"],
  ["logs", "Logs", "LogsPage"], ["metrics", "Metrics", "MetricsPage"],
];

export function JobPage() {
  const shown = page.value;
  const { job, page: name } = route.value;
  if (!shown)
    return html`<main id="content" tabindex="-1">${gone.value ? html`<${Answer} ask="There is no such job">${gone.value.message} <a href="#/jobs">All jobs</a><//>` : html`<p class="empty" role="status">Waiting for the figures of ${job} …</p>`}</main>`;
  const [, title, part] = PAGES.find(([known]) => known === name) || [];
  return html`
    <${Head} card=${shown.card} totals=${shown.details.totals} />
    ${!shown.answers && html`<${Stale} card=${shown.card} />`}
    ${gone.value && html`<p class="silence" role="status">${gone.value.message} Shown is what was known last.</p>`}
    <${Findings} job=${job} findings=${shown.findings} />
    <div class="frame">
      <nav class="pages" aria-label="Pages of the job"><ul>${PAGES.map(([known, text]) => html`<li key=${known}><a href=${to(job, known)} aria-current=${known === name ? "page" : undefined}>${text}${known === "exceptions" && shown.details.exceptions.length > 0 && html` <span class="badge">${shown.details.exceptions.length}</span>`}</a></li>`)}</ul></nav>
      <main id="content" tabindex="-1" key=${name}>${part ? html`<${Lazy} name=${name} part=${part} />` : title ? html`<${Overview} shown=${shown} />` : html`<${Empty}>There is no page “${name}”.<//>`}</main>
    </div>`;
}

const Stale = ({ card }) =>
  ["ended", "died"].includes(card.life)
    ? html`<p class="silence calm" role="status">${card.life === "died" ? "The driver died without a word." : "The job has ended."} Shown is its history on storage, as of ${clock(card.as_of_ms)} (${span(now.value - card.as_of_ms)} ago).</p>`
    : html`<p class="silence" role="status">The driver does not answer. The figures are those of ${clock(card.as_of_ms)}, ${span(now.value - card.as_of_ms)} ago.</p>`;

const Head = memo(({ card, totals }) => html`<section class="jobhead" aria-label="The job">
    <div class="title"><strong>${card.name}</strong><${Pill} of=${stateOf(card)} /><span class="dim id">${card.job_id}</span></div>
    <${Facts} of=${[
      ["Guarantee", (card.guarantee ?? "–").split(" (")[0], card.guarantee],
      ["Records", rate(card.records_per_second)],
      ["Lag", card.lag === null ? "–" : count(card.lag), card.lag === null ? "The sources do not know it" : undefined],
      ["Last checkpoint", card.last_checkpoint_ms ? html`<${Ago} ms=${card.last_checkpoint_ms} />` : "none"],
      ["Restarts", count(card.restarts)],
      ["Rounds", count(totals.rounds)],
      ["Started", html`<${Ago} ms=${card.started_ms} />`],
    ]} />
  </section>`);

const WORD = { failing: "Failing", warning: "Warning", note: "Note" };

function Findings({ job, findings }) {
  const here = location.hash;
  return findings.length > 0 && html`<section class="findings" aria-label="Findings"><ul>${findings.map((f) => {
    const link = linkOf(job, f);
    return html`<li key=${f.kind + f.sentence}><a class="finding ${f.severity}" href=${link} aria-current=${link === here ? "true" : undefined}><b>${WORD[f.severity]}</b> <span>${f.sentence}</span></a></li>`;
  })}</ul></section>`;
}

const PATHS = [
  { head: "From", cell: (p) => p.source },
  { head: "To", cell: (p) => p.sink ?? "(no sink)" },
  { head: "Guarantee", cell: (p) => p.guarantee },
  { head: "Reason", cell: (p) => p.reason ?? "–", wide: true },
  { head: "Cure", cell: (p) => p.cure ?? "–", wide: true },
];
const ATTEMPTS = [
  { head: "Attempt", cell: (a) => a.number, num: true },
  { head: "Started", cell: (a) => html`<${When} ms=${a.started_ms} />` },
  { head: "Ran for", cell: (a, now) => duration((a.ended_ms ?? now) - a.started_ms), num: true },
  { head: "Restored", cell: (a) => a.checkpoint ?? (a.restored ? `after round ${a.restored}` : "from the start"), wide: true },
  { head: "Ended because", cell: (a) => a.reason ?? "–", wide: true },
];

function Overview({ shown }) {
  const { card, details } = shown;
  const rounds = details.rounds;
  const last = [...details.checkpoints].reverse().find((c) => c.status === "completed" && c.entry);
  const slow = rounds.length ? median(rounds.map((r) => r.seconds * 1000)) : 0;
  const busiest = [...details.subtasks].sort((a, b) => b.busy - a.busy)[0];
  const first = busiest && details.operators.find((o) => o.chain === busiest.chain);
  return html`
    <${Answer} ask="How is this job?">
      ${card.ended_ms ? `It ended ${details.state.toLowerCase()} after ${span(card.ended_ms - card.started_ms)}` : `It is ${stateOf(card).toLowerCase()} and reads ${rate(card.records_per_second)}`}${rounds.length ? `; a round takes ${duration(slow)}` : ""}${last ? html`; <a href=${to(card.job_id, "checkpoints", last.checkpoint_id)}>checkpoint ${last.checkpoint_id}</a> took ${duration(last.entry.duration_ms)}` : ""}.
      ${first ? html` The busiest subtask is <a href=${to(card.job_id, "graph", undefined, { operator: first.id, subtask: busiest.subtask })}>${busiest.subtask + 1}/${first.parallelism} of ${first.name}</a>, busy ${percent(busiest.busy)} of the time.` : ""}
    <//>
    ${rounds.length > 1 ? html`<div class="two">
      <${Plot} title="Records read" unit="per second" xs=${rounds.map((r) => r.started_ms / 1000)} series=${[["records/s", rounds.map((r) => r.records_in / Math.max(r.seconds, 1e-9))]]} form=${rate} />
      <${Plot} title="Time of a round" unit="" xs=${rounds.map((r) => r.started_ms / 1000)} series=${[["round", rounds.map((r) => r.seconds * 1000)], ["steps 7 to 9 beside it", rounds.map((r) => r.commit_seconds * 1000)]]} form=${duration} />
    </div>` : html`<${Empty}>No round has been accepted yet.<//>`}
    <${Section} title="Guarantee of each path"><${Table} label="Guarantee of each path" columns=${PATHS} rows=${details.paths} keyOf=${(p) => p.source + p.sink} /><//>
    <${Section} title=${plural(details.attempts.length, "attempt")}><${Table} label="Attempts" columns=${ATTEMPTS} rows=${[...details.attempts].reverse()} keyOf=${(a) => a.number} extra=${details.ended_ms ?? card.as_of_ms} /><//>`;
}
