// Actions: each says what will happen before it acts, and how it ended.
import { ask, change, followed, jobPath, now, page, route } from "../api.js";
import { Ago, Answer, Command, Empty, html, Pill, Section, Trouble, useAnswer, useEffect, useRef, useState, Waiting } from "../parts/ui.js";
import { bytes, clock, duration, plural, span } from "../parts/format.js";
import { Table } from "../parts/table.js";

const TARGET = { name: "target", label: "Directory of the savepoint", hint: "empty: the configured one", text: true };
const ACTIONS = [
  { id: "checkpoint", path: "checkpoints", title: "Take a checkpoint", does: "Secures what has been done, now.", fields: [] },
  { id: "savepoint", path: "savepoints", title: "Take a savepoint", does: "Copies the state to a place of your own; the job continues.", fields: [TARGET] },
  { id: "stop", path: "stop", title: "Stop", does: "Ends with a savepoint, from which it can resume.", fields: [TARGET], fixed: { drain: false }, ends: true },
  { id: "drain", path: "stop", title: "Drain", does: "Fires all windows and timers, then ends for good.", fields: [TARGET], fixed: { drain: true }, will: "stop", ends: true },
  { id: "rescale", path: "rescale", title: "Rescale", does: "Stops with a savepoint and resumes with another parallelism.", fields: [{ name: "parallelism", label: "Parallelism", number: true, required: true }, TARGET], ends: true },
  { id: "cancel", path: "cancel", title: "Cancel", does: "Ends at once.", fields: [{ name: "savepoint", label: "Take a savepoint first", check: true }, TARGET], ends: true },
];

export function ActionsPage() {
  const { card } = page.value;
  const { job } = route.value;
  const [begun, setBegun] = useState(0);
  const operations = useAnswer(jobPath(job, "/operations"), 3000);
  const over = card.ended_ms !== null || card.life === "died";
  const listed = [...(operations.value ?? [])].reverse();
  return html`
    <${Answer} ask="What shall happen?">${over ? "The job has ended, so it takes no commands. Its snapshots can be disposed of." : "Each action says what it will do before it acts."}<//>
    <div class="actions">${ACTIONS.map((action) => html`<${Action} key=${action.id} job=${job} action=${action} over=${over} onBegun=${() => setBegun((n) => n + 1)} />`)}</div>
    <${Section} title="Operations"><${Waiting} of=${operations} what="the operations">${listed.length ? html`<${Table} label="Operations" columns=${OPERATIONS} rows=${listed} keyOf=${(o) => o.id} />` : html`<${Empty}>Nobody has asked this job for anything yet.<//>`}<//><//>
    <${Snapshots} key=${begun} job=${job} />`;
}

const OPERATIONS = [
  { head: "Operation", cell: (o) => o.kind },
  { head: "State", cell: (o) => html`<${Pill} of=${o.status} />` },
  { head: "Begun", cell: (o) => html`${clock(o.started_ms)} (<${Ago} ms=${o.started_ms} />)`, num: true },
  { head: "Took", cell: (o) => (o.ended_ms === null ? "–" : duration(o.ended_ms - o.started_ms)), num: true },
  { head: "Result", cell: (o) => o.problem?.message ?? o.result ?? "–", wide: true },
];

/** Ask what will happen, let the user agree, do it, and follow it to its end, which may come after the job's own. */
function Action({ job, action, over, onBegun }) {
  const [values, setValues] = useState({});
  const [stage, setStage] = useState({ at: "form" }); // form, asking, agree, doing, done
  const agree = useRef();
  const result = useRef();
  const body = () => {
    const given = { ...action.fixed };
    for (const field of action.fields) {
      const value = values[field.name];
      if (field.check) given[field.name] = Boolean(value);
      else if (value !== undefined && value !== "") given[field.name] = field.number ? Number(value) : value;
    }
    return given;
  };
  const review = async (event) => {
    event.preventDefault();
    setStage({ at: "asking" });
    try {
      setStage({ at: "agree", will: await ask(jobPath(job, "/will"), { query: { ...body(), action: action.will ?? action.id } }) });
    } catch (problem) {
      setStage({ at: "form", problem });
    }
  };
  const act = async () => {
    setStage({ at: "doing", since: Date.now() });
    try {
      const begun = await change(jobPath(job, `/${action.path}`), body());
      onBegun();
      const operation = await followed(job, begun, (known) => setStage({ at: "doing", since: known.started_ms }));
      setStage({ at: "done", operation });
    } catch (problem) {
      setStage({ at: "done", problem });
    }
    onBegun();
  };
  useEffect(() => {
    if (stage.at === "agree") agree.current?.focus();
    if (stage.at === "done") result.current?.focus();
  }, [stage.at]);
  const back = () => setStage({ at: "form" });
  const { will, operation } = stage;
  if (over && stage.at !== "doing" && stage.at !== "done") return null;
  return html`<form class="action" aria-label=${action.title} onSubmit=${review}>
    <h2>${action.title}</h2><p class="dim">${action.does}</p>
    ${(stage.at === "form" || stage.at === "asking") && html`
      ${action.fields.map((f) => (f.check
        ? html`<label class="check"><input type="checkbox" checked=${values[f.name]} onChange=${(e) => setValues({ ...values, [f.name]: e.target.checked })} /> ${f.label}</label>`
        : html`<label>${f.label} <input type=${f.number ? "number" : "text"} min="1" required=${f.required} value=${values[f.name] ?? ""} placeholder=${f.hint} onInput=${(e) => setValues({ ...values, [f.name]: e.target.value })} /></label>`))}
      <${Trouble} problem=${stage.problem} />
      <button disabled=${stage.at === "asking"}>What will happen?</button>`}
    ${stage.at === "agree" && html`<div ref=${agree} tabindex="-1" class="will"><ul>${will.sentences.map((s) => html`<li key=${s}>${s}</li>`)}</ul>
      ${will.problem && html`<${Trouble} problem=${{ message: will.problem }} />`}
      ${will.allowed && html`<button type="button" class=${action.ends ? "danger" : "primary"} onClick=${act}>${action.title}</button>`} <button type="button" onClick=${back}>Back</button></div>`}
    ${stage.at === "doing" && html`<p role="status">Under way for ${span(now.value - stage.since)}. It continues if you leave this page.</p>`}
    ${stage.at === "done" && html`<div ref=${result} tabindex="-1" role="status">${operation ? html`<p><${Pill} of="succeeded" /> in ${duration(operation.ended_ms - operation.started_ms)}</p>${operation.result && html`<${Command} text=${operation.result} />`}` : html`<${Trouble} problem=${stage.problem} />`}
      <button type="button" onClick=${back}>Back</button></div>`}
  </form>`;
}

/** Snapshots, and how to get rid of one. */
function Snapshots({ job }) {
  const found = useAnswer(jobPath(job, "/snapshots"));
  const [chosen, choose] = useState(null);
  const [stage, setStage] = useState({});
  const dispose = async () => {
    try {
      await change("/snapshots/dispose", { path: chosen });
      setStage({ done: chosen });
    } catch (problem) {
      setStage({ problem });
    }
    choose(null);
  };
  const rows = (found.value ?? []).filter((s) => s.path !== stage.done);
  return html`<${Section} title="Snapshots on storage"><${Waiting} of=${found} what="the snapshots">
    ${stage.done && html`<p role="status">${stage.done} is gone.</p>`}
    <${Trouble} problem=${stage.problem} />
    ${rows.length ? html`<ul class="snapshots">${rows.map((s) => html`<li key=${s.path}><b>${s.kind} ${s.checkpoint_id}</b> <span class="num">${bytes(s.size)}</span> <span class="dim"><${Ago} ms=${s.at_ms} /></span> <code>${s.path}</code> <button type="button" class="small" aria-label=${`Dispose of ${s.kind} ${s.checkpoint_id}`} onClick=${() => (choose(s.path), setStage({}))}>Dispose …</button>
      ${chosen === s.path && html`<div class="will"><ul><li>All files that belong to this snapshot alone are deleted.</li><li>No job can start from it any more, and nobody can bring it back.</li></ul><button type="button" class="danger" onClick=${dispose}>Delete it for good</button> <button type="button" onClick=${() => choose(null)}>Back</button></div>`}</li>`)}</ul>` : html`<${Empty}>There is none.<//>`}
  <//><//>`;
}
