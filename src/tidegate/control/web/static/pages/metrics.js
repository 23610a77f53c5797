// Metrics: pick some, and see them as plots. The page keeps the last minutes itself.
import { ask, jobPath, route, to } from "../api.js";
import { Answer, Empty, html, Trouble, useEffect, useState } from "../parts/ui.js";
import { plural, rate, short } from "../parts/format.js";
import { Table } from "../parts/table.js";
import { Plot } from "../parts/plot.js";

const EVERY_MS = 2000, MOST = 300;
const idOf = (m) => `${m.operator ?? ""}/${m.name}/${Object.entries(m.labels).join("/")}`;
/** What tells it from others of its name: subtask, state, part ... as in the text for Prometheus. */
const whichOf = (m) => Object.entries(m.labels).filter(([name]) => name !== "operator_id").map((pair) => pair.join("=")).join(", ");
const kept = { job: null, at: [], values: new Map() };

export function MetricsPage() {
  const { job, query } = route.value;
  const [listed, setListed] = useState(null);
  const [problem, setProblem] = useState(null);
  const [filter, setFilter] = useState("");
  useEffect(() => {
    let open = true;
    if (kept.job !== job) Object.assign(kept, { job, at: [], values: new Map() });
    const read = () => ask(jobPath(job, "/metrics")).then((found) => open && (setProblem(null), keep(found), setListed(found)), (met) => open && setProblem(met));
    read();
    const timer = setInterval(read, EVERY_MS);
    return () => ((open = false), clearInterval(timer));
  }, [job]);
  const picked = (query.show ?? "").split("\n").filter(Boolean);
  const pick = (id) => to(job, "metrics", undefined, { show: (picked.includes(id) ? picked.filter((p) => p !== id) : [...picked, id]).join("\n") });
  const nameOf = (m) => `${m.operator ?? "job"} · ${m.name} ${whichOf(m)}`;
  const shown = (listed ?? []).filter((m) => `${nameOf(m)} ${m.kind}`.toLowerCase().includes(filter.toLowerCase()));
  return html`
    <${Answer} ask="What do its functions measure?">${!listed ? "" : listed.length ? `${plural(listed.length, "metric")}. Pick some to see them as plots; they begin when you open this page.` : "Nothing yet."}<//>
    <${Trouble} problem=${problem} />
    ${picked.length > 0 && html`<div class="two">${picked.map((id) => {
      const metric = listed?.find((m) => idOf(m) === id);
      const values = kept.values.get(id) ?? [];
      const counts = metric?.kind === "counter";
      return metric && html`<${Plot} key=${id} title=${nameOf(metric)} unit=${counts ? "per second" : metric.kind} xs=${kept.at} series=${[[metric.name, counts ? perSecond(values) : values]]} form=${counts ? rate : short} />`;
    })}</div>`}
    ${listed && !listed.length && html`<${Empty}>Functions that register counters, gauges, meters or distributions appear here.<//>`}
    ${listed?.length > 0 && html`<label class="filter">Filter <input type="search" value=${filter} placeholder="operator, name or kind" onInput=${(e) => setFilter(e.target.value)} /></label>
      <${Table} label="Metrics" columns=${COLUMNS} rows=${shown} keyOf=${idOf} extra=${picked} first=${100} markedIf=${(m) => picked.includes(idOf(m))} hrefOf=${(m) => pick(idOf(m))} />`}`;
}

const COLUMNS = [
  { head: "Metric", cell: (m, picked) => `${picked.includes(idOf(m)) ? "☑" : "☐"} ${m.name}`, by: (m) => m.name },
  { head: "Of", cell: (m) => whichOf(m) || "–", by: whichOf },
  { head: "Operator", cell: (m) => m.operator ?? "job", by: (m) => m.operator },
  { head: "Kind", cell: (m) => m.kind, by: (m) => m.kind },
  { head: "Value", cell: (m) => short(m.value), by: (m) => m.value, num: true },
];

const perSecond = (values) => values.map((v, i) => (i && v !== null && values[i - 1] !== null && v >= values[i - 1] ? (v - values[i - 1]) / Math.max(kept.at[i] - kept.at[i - 1], 1e-9) : null));

function keep(found) {
  kept.at = [...kept.at, Date.now() / 1000].slice(-MOST);
  const next = new Map();
  for (const m of found) {
    const before = kept.values.get(idOf(m)) ?? Array(Math.max(0, kept.at.length - 1)).fill(null);
    next.set(idOf(m), [...before, m.value].slice(-MOST));
  }
  kept.values = next;
}
