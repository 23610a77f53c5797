// Checkpoints: the last 200 as a strip, one opened by step, operator and subtask, and trends.
import { jobPath, marked, page, route, to } from "../api.js";
import { Answer, Bar, Empty, Facts, Fold, html, memo, Pill, Section, Trouble, useAnswer, useState, When } from "../parts/ui.js";
import { bytes, clock, count, duration, median, NONE, percent, plural, span } from "../parts/format.js";
import { Legend, Strip } from "../parts/strip.js";
import { Table } from "../parts/table.js";
import { Plot } from "../parts/plot.js";

const SHOWN = 200;
const KINDS = { completed: "p-size", failed: "p-failed", "in progress": "p-running" };
const STEPS = [
  ["trigger", "1 Trigger"], ["run", "3 Run"], ["align", "4 Align"], ["snapshot", "5 Snapshot"],
  ["complete", "7 Complete"], ["commit", "8 Commit"], ["subsume", "9 Subsume"],
];

const tookOf = (c) => c.entry?.duration_ms ?? Math.max(0, ...Object.values(c.passed_ms)) - (c.passed_ms[1] ?? 0);

export function CheckpointsPage() {
  const { details, card } = page.value;
  const { job, item } = route.value;
  const all = details.checkpoints.slice(-SHOWN);
  const failed = all.filter((c) => c.status === "failed").length;
  const took = all.filter((c) => c.status === "completed").map(tookOf);
  const opened = item ?? ([...all].reverse().find((c) => c.status !== "in progress") ?? all[0])?.checkpoint_id;
  const done = all.filter((c) => c.status === "completed");
  return html`
    <${Answer} ask="Are the checkpoints in time?">
      ${!all.length ? (details.checkpoint_interval_ms === null ? "This job takes no checkpoints." : "None has been triggered yet.") : html`The last ${plural(all.length, "checkpoint")} took ${duration(median(took))} (median), at most ${duration(Math.max(0, ...took))}${details.checkpoint_interval_ms ? `; one is due every ${span(details.checkpoint_interval_ms)}` : ""}. ${failed ? html`<b>${plural(failed, "checkpoint")} failed.</b>` : "None failed."}`}
    <//>
    ${details.checkpoint_interval_ms === null && !all.length && html`<${Empty}>Set <code>execution.checkpointing.interval</code>, and a failure costs no more than this time.<//>`}
    ${all.length > 0 && html`
      <${Strip} label=${`Duration of the last ${all.length} checkpoints`} form=${duration} selected=${Number(opened)} items=${all.map((c) => itemOf(job, c))} />
      <${Legend} of=${[["p-size", "complete", count(done.length)], ["p-failed", "failed", count(failed)], ["p-running", "in progress", count(all.length - done.length - failed)], ["p-save", "savepoint"]]} />
      <${Opened} key=${opened} job=${job} id=${opened} known=${all.find((c) => c.checkpoint_id === Number(opened))} operators=${details.operators} as=${card.as_of_ms} />
      <${Section} title="Trends"><div class="two">
        <${Plot} title="Duration" unit="steps 1 to 7" numbered xs=${done.map((c) => c.checkpoint_id)} series=${[["duration", done.map(tookOf)]]} form=${duration} />
        <${Plot} title="Size" unit="all state, and what was new" numbered xs=${done.map((c) => c.checkpoint_id)} series=${[["all", done.map((c) => c.size)], ["new", done.map((c) => c.entry?.incremental ?? 0)]]} form=${bytes} />
      </div><//>
      <${Fold} title=${`Table of all ${all.length}`}><${Table} label="Checkpoints" columns=${LIST} rows=${[...all].reverse()} keyOf=${(c) => c.checkpoint_id} hrefOf=${(c) => to(job, "checkpoints", c.checkpoint_id)} /><//>`}
    ${!all.length && item && html`<${Opened} key=${item} job=${job} id=${item} operators=${details.operators} as=${card.as_of_ms} />`}`;
}

// Made anew only if the checkpoint changed, so a bar that did not change is not drawn again.
const items = new WeakMap();
function itemOf(job, c) {
  if (!items.has(c)) {
    const save = c.kind.includes("savepoint");
    const label = `${save ? "Savepoint" : "Checkpoint"} ${c.checkpoint_id}: ${c.status}, ${duration(tookOf(c))}, ${bytes(c.size)}, ${clock(c.passed_ms[1])}`;
    items.set(c, { id: c.checkpoint_id, href: to(job, "checkpoints", c.checkpoint_id), label, kind: c.status === "failed" ? "failed" : "", parts: [[save && c.status === "completed" ? "p-save" : KINDS[c.status], tookOf(c)]] });
  }
  return items.get(c);
}

const LIST = [
  { head: "Id", cell: (c) => c.checkpoint_id, by: (c) => c.checkpoint_id },
  { head: "Result", cell: (c) => html`<${Pill} of=${c.status} />`, by: (c) => c.status },
  { head: "Kind", cell: (c) => c.kind, by: (c) => c.kind },
  { head: "Triggered", cell: (c) => clock(c.passed_ms[1]), num: true },
  { head: "Took", cell: (c) => duration(tookOf(c)), by: tookOf, num: true },
  { head: "Size", cell: (c) => bytes(c.size), by: (c) => c.size, num: true },
  { head: "New", cell: (c) => bytes(c.entry?.incremental), by: (c) => c.entry?.incremental, num: true },
  { head: "Why it failed", cell: (c) => c.message ?? "", wide: true },
];

/** One checkpoint. It is asked for again when the job's page says that it changed. */
function Opened({ job, id, known, operators, as }) {
  const stage = known ? Object.keys(known.passed_ms).length + known.status : "";
  const asked = useAnswer(jobPath(job, `/checkpoints/${encodeURIComponent(id)}${stage && `?stage=${encodeURIComponent(stage)}`}`));
  const [last, keep] = useState(null);
  if (asked.value && asked.value !== last) keep(asked.value);
  const opened = asked.value ?? last ?? (known && { view: known, why: null, story: [] });
  if (!opened) return html`<${Trouble} problem=${asked.problem} />`;
  const { view, why, story } = opened;
  const { entry } = view;
  const save = view.kind.includes("savepoint");
  return html`<${Section} class="opened" title=${`${save ? "Savepoint" : "Checkpoint"} ${view.checkpoint_id}`} aside=${html`<${Pill} of=${view.status} />`}>
    ${asked.problem && asked.problem.code !== "unanswered" && html`<${Trouble} problem=${asked.problem} />`}
    ${(why || view.message) && html`<p class="why ${view.status === "failed" ? "failing" : "warning"}">${why ?? view.message}</p>`}
    <${Facts} of=${[
      ["Triggered", html`<${When} ms=${view.passed_ms[1]} />`],
      ["Took", duration(tookOf(view)), "Steps 1 to 7"],
      ["Size", bytes(view.size)],
      ["New bytes", bytes(entry?.incremental)],
      ["In flight", entry ? bytes(entry.in_flight_bytes ?? 0) : NONE, `${count(entry?.in_flight_records ?? 0)} records`],
      ["Lag at the cut", count(entry?.behind)],
      ["To commit", count(entry?.output)],
      ["Attempt", count(view.attempt)],
    ]} />
    <${Steps} view=${view} as=${as} />
    <${Operators} view=${view} operators=${operators} job=${job} />
    ${story.length > 0 && html`<${Fold} title=${`Story, ${plural(story.length, "event")}`}><ol class="story">${story.map((n, i) => html`<li key=${i}><span class="num dim">${clock(n.at_ms)}</span> <b>${n.what}</b> ${n.more}</li>`)}</ol><//>`}
  <//>`;
}

/** When each step began and how long it took, in milliseconds after the trigger. */
function stepsOf(view, as) {
  const took = view.entry?.steps_ms ?? {};
  const at = (step) => (view.passed_ms[step] === undefined ? undefined : view.passed_ms[step] - view.passed_ms[1]);
  const cut = at(6) ?? (took.trigger ?? 0) + (took.run ?? 0);
  const ends = { trigger: took.trigger, run: cut, snapshot: cut, align: cut - (took.snapshot ?? 0), complete: at(7), commit: at(8), subsume: at(9) };
  const before = { complete: at(6), commit: at(7), subsume: at(8) };
  return STEPS.flatMap(([step, name]) => {
    const length = took[step] ?? (ends[step] !== undefined && before[step] !== undefined ? ends[step] - before[step] : undefined);
    if (length === undefined && view.status !== "failed" && as > view.passed_ms[1] + before[step] && step !== "subsume")
      return [{ step, name: `${name}, under way`, length: as - view.passed_ms[1] - before[step], from: before[step] }];
    if (length === undefined) return [];
    const end = Math.max(ends[step] ?? length, length);
    return [{ step, name, length, from: end - length }];
  });
}

const STEP_COLUMNS = [
  { head: "Step", cell: (s) => s.name },
  { head: "Time line", cell: (s, all) => html`<${Bar} label=${`${s.name} from ${duration(s.from)} for ${duration(s.length)}`} parts=${[[`p-${s.step}`, s.length / all, s.from / all]]} />`, wide: true },
  { head: "From", cell: (s) => duration(s.from), num: true },
  { head: "Took", cell: (s) => duration(s.length), num: true },
  { head: "Part", cell: (s, all) => percent(s.length / all), num: true },
];

function Steps({ view, as }) {
  const rows = stepsOf(view, as);
  const whole = Math.max(1, ...rows.map((s) => s.from + s.length));
  return rows.length > 0 && html`<h3>By step</h3><${Table} label="Steps of the checkpoint" columns=${STEP_COLUMNS} rows=${rows} keyOf=${(s) => s.step} extra=${whole} markedIf=${(s) => s.step === marked.value.step} />`;
}

const segments = (f, whole) => [["p-run", (f.run_ms ?? 0) / whole], ["p-align", (f.align_ms ?? 0) / whole], ["p-snapshot", (f.snapshot_ms ?? 0) / whole]];
const sum = (f) => (f.run_ms ?? 0) + (f.align_ms ?? 0) + (f.snapshot_ms ?? 0);
const FIGURES = [
  { head: "Time line", cell: (f, whole) => html`<${Bar} label=${`Run ${duration(f.run_ms)}, align ${duration(f.align_ms)}, snapshot ${duration(f.snapshot_ms)}`} parts=${segments(f, whole)} />`, wide: true },
  { head: "Run", cell: (f) => duration(f.run_ms ?? 0), by: (f) => f.run_ms, num: true },
  { head: "Align", cell: (f) => duration(f.align_ms ?? 0), by: (f) => f.align_ms, num: true },
  { head: "Snapshot", cell: (f) => duration(f.snapshot_ms ?? 0), by: (f) => f.snapshot_ms, num: true },
  { head: "Size", cell: (f) => bytes(f.size ?? 0), by: (f) => f.size, num: true },
  { head: "New", cell: (f) => bytes(f.incremental ?? 0), by: (f) => f.incremental, num: true },
];
const BY_OPERATOR = [{ head: "Operator", cell: (f) => f.name }, ...FIGURES];
const BY_SUBTASK = [{ head: "Subtask", cell: (f) => `${f.subtask + 1}/${f.of} of ${f.name}`, by: (f) => f.subtask }, ...FIGURES];

/** Operators with the times of their slowest subtask; the chosen one with its subtasks. */
function Operators({ view, operators, job }) {
  const wanted = marked.value;
  const named = new Map(operators.map((o) => [o.id, o]));
  const rows = view.subtasks.length
    ? [...Map.groupBy(view.subtasks, (s) => s.operator)].map(([id, of]) => ({ id, name: named.get(id)?.name ?? `operator ${id}`, ...Object.fromEntries(["run_ms", "align_ms", "snapshot_ms"].map((k) => [k, Math.max(...of.map((s) => s[k]))])), size: of.reduce((n, s) => n + s.size, 0), incremental: of.reduce((n, s) => n + s.incremental, 0) }))
    : Object.entries(view.entry?.operators ?? {}).map(([id, figures]) => ({ id, ...figures }));
  if (!rows.length) return null;
  rows.sort((a, b) => sum(b) - sum(a));
  const open = rows.find((r) => r.id === wanted.operator) ?? rows[0];
  const subtasks = view.subtasks.filter((s) => s.operator === open.id).map((s) => ({ ...s, name: open.name, of: named.get(open.id)?.parallelism ?? "?" })).sort((a, b) => sum(b) - sum(a));
  const whole = Math.max(1, ...rows.map(sum));
  return html`<h3>By operator</h3>
    <${Legend} of=${[["p-run", "run"], ["p-align", "align"], ["p-snapshot", "snapshot"]]} />
    <${Table} label="Operators of the checkpoint" columns=${BY_OPERATOR} rows=${rows} keyOf=${(r) => r.id} extra=${whole} first=${12} markedIf=${(r) => r.id === wanted.operator} hrefOf=${(r) => (view.subtasks.length ? to(job, "checkpoints", view.checkpoint_id, { operator: r.id }) : undefined)} />
    ${subtasks.length > 0 && html`<h3>Subtasks of ${open.name}, slowest first</h3><${Table} label=${`Subtasks of ${open.name}`} columns=${BY_SUBTASK} rows=${subtasks} keyOf=${(r) => r.subtask} extra=${whole} first=${16} markedIf=${(r) => wanted.operator === open.id && r.subtask === wanted.subtask} />`}`;
}
