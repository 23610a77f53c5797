// The first page: every job, what needs attention first.
import { jobs, linkOf, now, to } from "../api.js";
import { Ago, Answer, Empty, html, memo, Pill, Section, stateOf, useState } from "../parts/ui.js";
import { count, plural, rate, span } from "../parts/format.js";

const urgent = (card) => card.attention && card.attention.severity !== "note";
const ended = (card) => card.ended_ms !== null || card.life === "died";

export function JobsPage() {
  const [filter, setFilter] = useState("");
  const all = jobs.value;
  if (!all) return html`<p class="empty" role="status">Waiting for the server …</p>`;
  const needing = all.filter(urgent);
  const shown = all.filter((card) => `${card.name} ${card.job_id} ${stateOf(card)}`.toLowerCase().includes(filter.toLowerCase()));
  const groups = [
    ["Needs attention", shown.filter(urgent)],
    ["Running", shown.filter((card) => !urgent(card) && !ended(card))],
    ["Ended", shown.filter((card) => !urgent(card) && ended(card))],
  ];
  const running = all.filter((card) => !ended(card)).length;
  return html`
    <${Answer} ask="Which job needs you?">
      ${!all.length ? "No job has run here yet." : needing.length ? html`<b>${plural(needing.length, "job")} of ${all.length}</b> ${needing.length === 1 ? "needs" : "need"} attention.` : html`No job does. ${running} of ${plural(all.length, "job")} ${running === 1 ? "runs" : "run"}.`}
    <//>
    ${!all.length && html`<${Empty}>Start one with <code>tidegate run job.py</code>. It appears here by itself.<//>`}
    ${all.length > 8 && html`<label class="filter">Filter <input type="search" value=${filter} placeholder="name, id or state" onInput=${(e) => setFilter(e.target.value)} /></label>`}
    ${groups.map(([title, cards]) => cards.length > 0 && html`<${Section} key=${title} title=${title} aside=${html`<span class="dim">${cards.length}</span>`}><ul class="cards">${cards.map((card) => html`<${Card} key=${card.job_id} card=${card} />`)}</ul><//>`)}
    ${all.length > 0 && !shown.length && html`<${Empty}>No job has “${filter}” in its name, id or state.<//>`}`;
}

const Card = memo(({ card }) => {
  const f = card.attention;
  return html`<li class="card ${f ? f.severity : ""}">
    <div class="title"><a href=${to(card.job_id)}>${card.name}</a><${Pill} of=${stateOf(card)} />
      <span class="dim id" title=${`Flink's id: ${card.flink_id}`}>${card.job_id}</span></div>
    ${f && html`<a class="finding ${f.severity}" href=${linkOf(card.job_id, f)}>${f.sentence}</a>`}
    <dl class="row">
      <div><dt>Guarantee</dt><dd title=${card.guarantee}>${(card.guarantee ?? "–").split(" (")[0]}</dd></div>
      <div><dt>Records</dt><dd>${ended(card) ? "–" : rate(card.records_per_second)}</dd></div>
      <div><dt>Lag</dt><dd title=${card.lag === null ? "The sources do not know it" : `${count(card.lag)} records`}>${card.lag === null ? "–" : count(card.lag)}</dd></div>
      <div><dt>Last checkpoint</dt><dd>${card.last_checkpoint_ms ? html`<a href=${to(card.job_id, "checkpoints", card.last_checkpoint_id)}><${Ago} ms=${card.last_checkpoint_ms} /></a>` : "none"}</dd></div>
      <div><dt>Restarts</dt><dd>${count(card.restarts)}</dd></div>
      <div><dt>${card.ended_ms ? "Ran for" : "Runs for"}</dt><dd><${Uptime} card=${card} /></dd></div>
    </dl>
  </li>`;
});

const Uptime = ({ card }) => span((card.ended_ms ?? (card.life === "died" ? card.as_of_ms : now.value)) - card.started_ms);
