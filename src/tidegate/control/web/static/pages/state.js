// State browser: operators, states, keys and values of a snapshot, and the difference of two.
import { ask, jobPath, marked, route, to } from "../api.js";
import { Ago, Answer, Empty, html, Pill, Section, Trouble, useAnswer, useEffect, useState, Waiting } from "../parts/ui.js";
import { bytes, count, plural } from "../parts/format.js";
import { Table } from "../parts/table.js";

const nameOf = (s) => `${s.kind} ${s.checkpoint_id ?? ""}`;
const query = (of) => new URLSearchParams(Object.entries(of).filter(([, value]) => value !== undefined && value !== "")).toString();

export function StatePage() {
  const { job, query: given } = route.value;
  const snapshots = useAnswer(jobPath(job, "/snapshots"));
  const newest = [...(snapshots.value ?? [])].sort((a, b) => b.at_ms - a.at_ms);
  const path = given.path ?? newest[0]?.path;
  const go = (changes) => (location.hash = to(job, "state", undefined, { path, before: given.before, operator: given.operator, uid: given.uid, state: given.state, ...changes }));
  return html`
    <${Answer} ask="What does the state hold?">${!snapshots.value ? "" : newest.length ? `${plural(newest.length, "snapshot")} can be read; the newest is ${nameOf(newest[0])}, ${bytes(newest[0].size)}.` : "There is no snapshot that can be read."}<//>
    <${Waiting} of=${snapshots} what="the snapshots">
      ${!newest.length && !path ? html`<${Empty}>The first completed checkpoint appears here.<//>` : html`<div class="fields">
        <label>Snapshot <select value=${path} onChange=${(e) => go({ path: e.target.value })}>${given.path && !newest.some((s) => s.path === given.path) && html`<option value=${given.path}>${given.path}</option>`}${newest.map((s) => html`<option key=${s.path} value=${s.path}>${nameOf(s)} · ${bytes(s.size)}</option>`)}</select></label>
        <label>Compare with an earlier one <select value=${given.before ?? ""} onChange=${(e) => go({ before: e.target.value })}><option value="">nothing</option>${newest.filter((s) => s.path !== path).map((s) => html`<option key=${s.path} value=${s.path}>${nameOf(s)} · ${bytes(s.size)}</option>`)}</select></label>
      </div>
      <p class="dim path">${path} ${newest.find((s) => s.path === path) && html`<${Ago} ms=${newest.find((s) => s.path === path).at_ms} />`}</p>
      <${Operators} key=${path} path=${path} before=${given.before} job=${job} chosen=${given} />`}
    <//>`;
}

const STATES = [
  { head: "Operator", cell: (s) => s.operator },
  { head: "State", cell: (s) => s.name },
  { head: "Kind", cell: (s) => s.kind },
  { head: "Size", cell: (s) => bytes(s.bytes), by: (s) => s.bytes, num: true },
  { head: "Entries", cell: (s) => count(s.entries), by: (s) => s.entries, num: true },
  { head: "Subtasks", cell: (s) => s.parallelism, num: true },
];

function Operators({ path, before, job, chosen }) {
  const operators = useAnswer(`/snapshots/operators?${query({ path })}`);
  const rows = (operators.value ?? []).flatMap((o) => o.states.map((s) => ({ ...s, operator: o.name ?? o.operator, uid: o.operator, parallelism: o.parallelism })));
  const open = rows.find((r) => r.uid === chosen.uid && r.name === chosen.state);
  return html`<${Waiting} of=${operators} what="the operators">
    ${rows.length ? html`<${Table} label="States of the snapshot" columns=${STATES} rows=${rows} keyOf=${(r) => `${r.uid} ${r.name}`} sort=${-4} markedIf=${(r) => r === open} hrefOf=${(r) => to(job, "state", undefined, { path, before, uid: r.uid, state: r.name })} />` : html`<${Empty}>No operator keeps state in this snapshot.<//>`}
    ${open && (before ? html`<${Difference} key=${before + path + open.uid + open.name} before=${before} after=${path} of=${open} />` : html`<${Entries} key=${path + open.uid + open.name} path=${path} of=${open} />`)}
    ${!open && rows.length > 0 && html`<p class="dim">Choose a state to see its keys and values.</p>`}
  <//>`;
}

const ENTRIES = [
  { head: "Key", cell: (e) => html`<code>${e.key}</code>`, by: (e) => e.key, wide: true },
  { head: "Namespace", cell: (e) => e.namespace ?? "–" },
  { head: "Value", cell: (e) => html`<code>${e.value}</code>`, wide: true },
];

function Entries({ path, of }) {
  const [key, setKey] = useState(marked.value.key ?? "");
  const [asked, setAsked] = useState(key);
  const [found, setFound] = useState({ entries: null, next: null });
  const read = (after, known) =>
    ask("/snapshots/entries", { query: { path, operator: of.uid, state: of.name, key: asked, limit: 100, after } }).then(
      (answer) => setFound({ entries: [...known, ...answer.entries], next: answer.next }), (problem) => setFound({ entries: known, next: null, problem }));
  useEffect(() => void read(undefined, []), [asked]);
  return html`<${Section} class="opened" title=${`${of.name} of ${of.operator}`}>
    <form class="fields" onSubmit=${(e) => (e.preventDefault(), setAsked(key))}><label>Key <input type="search" value=${key} placeholder="every key" onInput=${(e) => setKey(e.target.value)} /></label><button>Find</button></form>
    <${Trouble} problem=${found.problem} />
    ${!found.entries ? html`<p class="empty" role="status">Reading the state …</p>` : found.entries.length ? html`<${Table} label="Entries" columns=${ENTRIES} rows=${found.entries} keyOf=${(e) => found.entries.indexOf(e)} first=${1000} />` : !found.problem && html`<${Empty}>${asked ? `It has no key “${asked}”.` : "It is empty."}<//>`}
    ${found.next && html`<button type="button" class="more" onClick=${() => read(found.next, found.entries)}>Read more</button>`}
  <//>`;
}

const CHANGES = [
  { head: "Key", cell: (e) => html`<code>${e.key}</code>`, wide: true },
  { head: "Change", cell: (e) => html`<${Pill} of=${e.before === null ? "added" : e.after === null ? "removed" : "changed"} />` },
  { head: "Before", cell: (e) => html`<code>${e.before ?? "–"}</code>`, wide: true },
  { head: "After", cell: (e) => html`<code>${e.after ?? "–"}</code>`, wide: true },
];

function Difference({ before, after, of }) {
  const found = useAnswer(`/snapshots/difference?${query({ before, after, operator: of.uid, state: of.name, limit: 100 })}`);
  const { added, removed, changed, entries } = found.value ?? {};
  return html`<${Section} class="opened" title=${`What changed in ${of.name} of ${of.operator}`}><${Waiting} of=${found} what="both snapshots">
    <p>${count(added)} added, ${count(removed)} removed, ${count(changed)} changed.${entries?.length < added + removed + changed ? ` The first ${entries.length} are shown.` : ""}</p>
    ${entries?.length > 0 ? html`<${Table} label="Differences" columns=${CHANGES} rows=${entries} keyOf=${(e) => entries.indexOf(e)} first=${100} />` : html`<${Empty}>Both snapshots hold the same.<//>`}
  <//><//>`;
}
