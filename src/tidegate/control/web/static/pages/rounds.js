// Rounds: where the time goes, stacked by part.
import { jobPath, linkOf, marked, page, route, to } from "../api.js";
import { Ago, Answer, Bar, Empty, Facts, Fold, html, Section, useAnswer } from "../parts/ui.js";
import { clock, count, duration, percent, plural, rate } from "../parts/format.js";
import { Strip } from "../parts/strip.js";
import { Table } from "../parts/table.js";

export const PARTS = [
  ["plan", "plan", "The driver plans the round"],
  ["schedule", "schedule", "Spark schedules tasks and moves data"],
  ["read", "read", "Sources read their input"],
  ["user", "user code", "The loop with the user's functions"],
  ["pack", "pack", "Records are packed into chunks"],
  ["snapshot", "snapshot", "Operators write their snapshots"],
  ["accept", "accept", "The driver accepts the round"],
  ["store", "store", "Step 7 stores the checkpoint, beside rounds"],
  ["commit", "commit", "Step 8 commits output, beside rounds"],
];
const BESIDE = ["store", "commit"];
const known = new Set(PARTS.map(([part]) => part));
const partsOf = (r) => {
  const parts = PARTS.filter(([p]) => r.parts[p]).map(([p]) => [`p-${p}`, r.parts[p]]);
  const others = Object.entries(r.parts).filter(([p]) => !known.has(p)).map(([, s]) => ["p-other", s]);
  return parts.length ? [...parts, ...others] : [["p-other", r.seconds]];
};

const items = new WeakMap();
function itemOf(job, r) {
  if (!items.has(r)) items.set(r, { id: r.round, href: to(job, "rounds", r.round), label: `Round ${r.round}: ${duration(r.seconds * 1000)}, ${count(r.records_in)} records, ${clock(r.started_ms)}`, parts: partsOf(r) });
  return items.get(r);
}

const LEVELS = [
  { head: "Level", cell: (l) => l.level + 1 },
  { head: "Operators", cell: (l) => l.names, wide: true },
  { head: "Slowest task", cell: (l) => duration(l.seconds * 1000), num: true },
  { head: "Of the round", cell: (l, whole) => percent(l.seconds / whole), num: true },
];
const SHARES = [
  { head: "Part", cell: (p) => html`<i class="dot p-${p.part}"></i>${p.name}` },
  { head: "Share", cell: (p, whole) => html`<${Bar} label=${percent(p.all / whole)} parts=${[[`p-${p.part}`, p.all / whole]]} />`, wide: true },
  { head: "Of all", cell: (p, whole) => percent(p.all / whole), num: true, by: (p) => p.all },
  { head: "Median", cell: (p) => duration(p.mean * 1000), num: true },
  { head: "What it is", cell: (p) => p.what, wide: true },
];
const ROUNDS = [
  { head: "Round", cell: (r) => r.round, by: (r) => r.round },
  { head: "Started", cell: (r) => clock(r.started_ms), num: true },
  { head: "Took", cell: (r) => duration(r.seconds * 1000), by: (r) => r.seconds, num: true },
  { head: "Read", cell: (r) => count(r.records_in), by: (r) => r.records_in, num: true },
  { head: "Rate", cell: (r) => rate(r.records_in / r.seconds), by: (r) => r.records_in / r.seconds, num: true },
  ...PARTS.map(([part, name, what]) => ({ head: name, title: what, cell: (r) => (r.parts[part] === undefined ? "–" : duration(r.parts[part] * 1000)), by: (r) => r.parts[part] ?? 0, num: true })),
];

export function RoundsPage() {
  const { details, findings } = page.value;
  const { job, item } = route.value;
  const rounds = details.rounds;
  if (!rounds.length) return html`<${Answer} ask="Where does the time go?">No round has been accepted yet.<//><${Empty}>The first round begins when the sources have records and Spark has started its workers.<//>`;
  const middle = (part) => rounds.map((r) => r.parts[part] ?? 0).sort((a, b) => a - b)[rounds.length >> 1];
  const shares = PARTS.map(([part, name, what]) => ({ part, name, what, all: rounds.reduce((n, r) => n + (r.parts[part] ?? 0), 0), mean: middle(part) })).filter((p) => p.all > 0);
  const whole = shares.reduce((n, p) => n + p.all, 0) || 1;
  const time = rounds.reduce((n, r) => n + r.seconds, 0) || 1;
  const most = shares.filter((p) => !BESIDE.includes(p.part)).sort((a, b) => b.all - a.all)[0];
  const beside = shares.filter((p) => BESIDE.includes(p.part) && p.all > most?.all);
  const opened = rounds.find((r) => r.round === Number(item)) ?? rounds[rounds.length - 1];
  const related = findings.filter((f) => f.page === "rounds");
  return html`
    <${Answer} ask="Where does the time go?">A round takes ${duration((time / rounds.length) * 1000)} on average.${most ? html` <b>${percent(most.all / time)} of it is ${most.name}.</b>` : " The parts of the rounds are not known."}${beside.map((p) => html` <b>Beside the rounds, ${p.name} took longer: ${duration(p.all * 1000)} in all.</b>`)}<//>
    <${Strip} label=${`Time of the last ${rounds.length} rounds`} form=${(s) => duration(s * 1000)} selected=${opened.round} items=${rounds.map((r) => itemOf(job, r))} />
    ${shares.length > 0 && html`<${Table} label="Parts of the rounds" columns=${SHARES} rows=${shares} keyOf=${(p) => p.part} extra=${whole} markedIf=${(p) => p.part === marked.value.step} />`}
    ${related.map((f) => f.operator !== undefined && html`<p key=${f.sentence}><a href=${linkOf(job, { ...f, page: "graph" })}>Show the subtask in the graph</a></p>`)}
    <${Round} job=${job} round=${opened} operators=${details.operators} told=${item !== undefined} />
    <${Fold} title=${`Table of ${plural(rounds.length, "round")}`}><${Table} label="Rounds" columns=${ROUNDS} rows=${[...rounds].reverse()} keyOf=${(r) => r.round} hrefOf=${(r) => to(job, "rounds", r.round)} /><//>`;
}

function Round({ job, round, operators, told }) {
  const story = useAnswer(told ? jobPath(job, `/rounds/${round.round}/story`) : null);
  const whole = Object.values(round.parts).reduce((n, s) => n + s, 0) || 1;
  return html`<${Section} class="opened" title=${`Round ${round.round}`} aside=${html`<span class="dim"><${Ago} ms=${round.started_ms} /></span>`}>
    <${Facts} of=${[["Took", duration(round.seconds * 1000)], ["Records read", count(round.records_in)], ["Crossed an edge", count(round.records_out)], ["Rate", rate(round.records_in / Math.max(round.seconds, 1e-9))],
      ["Checkpoint", round.checkpoint_id === null ? "–" : html`<a href=${to(job, "checkpoints", round.checkpoint_id)}>${round.checkpoint_id}</a>`], ["Stores rebuilt", count(round.rebuilds)]]} />
    <${Bar} label="Parts of the round" parts=${partsOf(round).map(([kind, s]) => [kind, s / whole])} />
    ${round.levels.length > 1 && html`<h3>By level</h3><${Table} label="Levels of the round" columns=${LEVELS} rows=${round.levels.map((seconds, level) => ({ level, seconds, names: operators.filter((o) => o.level === level).map((o) => o.name).join(", ") }))} keyOf=${(l) => l.level} extra=${round.seconds} />`}
    ${story.value?.length > 0 && html`<ol class="story">${story.value.map((n, i) => html`<li key=${i}><span class="num dim">${clock(n.at_ms)}</span> <b>${n.what}</b> ${n.more}</li>`)}</ol>`}
  <//>`;
}
