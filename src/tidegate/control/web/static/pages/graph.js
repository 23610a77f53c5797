// Graph: operators and edges, coloured by how busy they are; beside it, the operator that is chosen.
import { layout, Graph } from "../vendor/dagre.js";
import { marked, page, route, to } from "../api.js";
import { Answer, Bar, Empty, Facts, Fold, html, memo, Section, useEffect, useRef, useState } from "../parts/ui.js";
import { bytes, count, duration, percent, plural, rate, short, watermark } from "../parts/format.js";
import { Legend, Strip } from "../parts/strip.js";
import { Table } from "../parts/table.js";

const WIDTH = 172, HEIGHT = 58;
const MANY = 40; // from here on the picture is seen from afar: short names, no rates

// -- layout: computed again only if the shape of the graph changes --------------------------------------------------------

const placed = new Map();
function place(operators, upright) {
  const shape = JSON.stringify(operators.map((o) => [o.id, o.inputs]));
  if (placed.get(upright)?.shape === shape) return placed.get(upright);
  const many = operators.length > MANY;
  const graph = new Graph().setGraph({ rankdir: upright ? "TB" : "LR", nodesep: 22, ranksep: many ? 34 : upright ? 46 : 74, marginx: 12, marginy: 12 }).setDefaultEdgeLabel(() => ({}));
  for (const o of operators) graph.setNode(String(o.id), { width: WIDTH, height: HEIGHT });
  for (const o of operators) for (const input of o.inputs) if (graph.hasNode(String(input))) graph.setEdge(String(input), String(o.id));
  layout(graph);
  const { width, height } = graph.graph();
  const edges = graph.edges().map(({ v, w }) => {
    const { points } = graph.edge(v, w);
    return { from: Number(v), to: Number(w), path: smooth(points), middle: points[points.length >> 1] };
  });
  const plan = { shape, width, height, edges, nodes: new Map(operators.map((o) => [o.id, graph.node(String(o.id))])) };
  placed.set(upright, plan);
  return plan;
}

function smooth(points) {
  let path = `M${points[0].x},${points[0].y}`;
  for (let i = 1; i < points.length - 1; i++) path += `Q${points[i].x},${points[i].y} ${(points[i].x + points[i + 1].x) / 2},${(points[i].y + points[i + 1].y) / 2}`;
  const end = points[points.length - 1];
  return `${path}L${end.x},${end.y}`;
}

// -- figures of a chain ---------------------------------------------------------------------------------------------------

const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0);
function loadOf(subtasks) {
  const load = new Map();
  for (const [chain, of] of Map.groupBy(subtasks, (s) => s.chain)) load.set(chain, { busy: mean(of.map((s) => s.busy)), most: Math.max(...of.map((s) => s.busy)), pressed: mean(of.map((s) => s.back_pressured)) });
  return load;
}
const heat = (load) => (!load ? "" : load.most > 0.9 ? "hot" : load.most > 0.6 ? "warm" : "cool");

export function GraphPage() {
  const { details } = page.value;
  const { job } = route.value;
  const wanted = marked.value;
  const { operators, subtasks } = details;
  const load = loadOf(subtasks);
  const busiest = [...load].sort(([, a], [, b]) => b.most - a.most)[0];
  const head = busiest && operators.find((o) => o.chain === busiest[0]);
  const pressed = [...load].filter(([chain, l]) => l.pressed > 0.5 && chain !== busiest[0]).length;
  const chosen = operators.find((o) => o.id === wanted.operator);
  return html`
    <${Answer} ask="Which operator is the bottleneck?">
      ${!operators.length ? "The graph is not known yet." : !head ? "No operator has run a round yet." : html`<a href=${to(job, "graph", undefined, { operator: head.id })}>${head.name}</a> is the busiest: its busiest subtask works ${percent(busiest[1].most)} of the time. ${pressed ? `${plural(pressed, "chain")} mostly ${pressed === 1 ? "waits" : "wait"} for slower subtasks.` : ""}`}
    <//>
    ${operators.length > 0 && html`<div class="graph ${chosen ? "with-side" : ""}">
      <${Picture} job=${job} operators=${operators} load=${load} chosen=${chosen?.id} />
      ${chosen && html`<${Side} key=${chosen.id} job=${job} operator=${chosen} subtasks=${subtasks} wanted=${wanted} />`}
    </div>
    <${Fold} open=${!chosen && operators.length <= 12} title=${`Table of ${plural(operators.length, "operator")}`}><${Table} label="Operators" columns=${OPERATORS} rows=${operators} keyOf=${(o) => o.id} extra=${load} hrefOf=${(o) => to(job, "graph", undefined, { operator: o.id })} /><//>`}`;
}

const OPERATORS = [
  { head: "Operator", cell: (o) => o.label, by: (o) => o.label },
  { head: "Subtasks", cell: (o) => o.parallelism, by: (o) => o.parallelism, num: true },
  { head: "Busy", cell: (o, load) => percent(load.get(o.chain)?.busy), num: true },
  { head: "Busiest", cell: (o, load) => percent(load.get(o.chain)?.most), num: true },
  { head: "Waits", cell: (o, load) => percent(load.get(o.chain)?.pressed), num: true },
  { head: "In", cell: (o) => rate(o.records_in_per_second), by: (o) => o.records_in_per_second, num: true },
  { head: "Out", cell: (o) => rate(o.records_out_per_second), by: (o) => o.records_out_per_second, num: true },
  { head: "State", cell: (o) => bytes(o.state_bytes), by: (o) => o.state_bytes, num: true },
  { head: "Watermark", cell: (o) => watermark(o.watermark), by: (o) => o.watermark, num: true },
];

// -- the picture ----------------------------------------------------------------------------------------------------------

function Picture({ job, operators, load, chosen }) {
  const frame = useRef();
  const [size, setSize] = useState(null);
  const [view, setView] = useState(null); // {x, y, scale}, null: fits the window
  const [filter, setFilter] = useState("");
  useEffect(() => {
    const sized = new ResizeObserver(([{ contentRect }]) => setSize({ width: contentRect.width, high: innerHeight * (operators.length > MANY ? 0.72 : 0.56) }));
    sized.observe(frame.current);
    return () => sized.disconnect();
  }, []);
  const fitOf = (plan) => Math.min(1, size.width / plan.width, size.high / plan.height);
  const ways = size && (operators.length > MANY ? [false, true] : [size.width < 640]).map((upright) => place(operators, upright));
  const plan = ways?.reduce((best, way) => (fitOf(way) > fitOf(best) ? way : best));
  const fit = plan && fitOf(plan);
  const height = plan ? Math.max(240, Math.min(size.high, plan.height * fit + 24)) : 240;
  const at = plan && (view ?? { scale: fit, x: (plan.width - size.width / fit) / 2, y: (plan.height - height / fit) / 2 });
  const zoom = (by, px = size.width / 2, py = height / 2) => {
    const scale = Math.min(2, Math.max(fit * 0.5, at.scale * by));
    setView({ scale, x: at.x + px / at.scale - px / scale, y: at.y + py / at.scale - py / scale });
  };
  useEffect(() => {
    const node = plan?.nodes.get(chosen);
    if (node && fit < 0.6) setView({ scale: 0.9, x: node.x - size.width / 1.8, y: node.y - height / 1.8 });
  }, [chosen, !plan]);
  const drag = (e) => {
    if (e.button || e.target.closest("a")) return;
    const [x, y] = [e.clientX, e.clientY];
    const move = (m) => setView({ ...at, x: at.x - (m.clientX - x) / at.scale, y: at.y - (m.clientY - y) / at.scale });
    const stop = () => (removeEventListener("pointermove", move), removeEventListener("pointerup", stop));
    addEventListener("pointermove", move);
    addEventListener("pointerup", stop);
  };
  const keys = (e) => {
    const step = { ArrowLeft: [-80, 0], ArrowRight: [80, 0], ArrowUp: [0, -80], ArrowDown: [0, 80] }[e.key];
    if (step) setView({ ...at, x: at.x + step[0] / at.scale, y: at.y + step[1] / at.scale });
    else if (e.key === "+" || e.key === "=") zoom(1.25);
    else if (e.key === "-") zoom(0.8);
    else if (e.key === "0") setView(null);
    else return;
    e.preventDefault();
  };
  const wheel = (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    const box = frame.current.getBoundingClientRect();
    zoom(Math.exp(-e.deltaY / 300), e.clientX - box.left, e.clientY - box.top);
  };
  const far = at?.scale < 0.5;
  const found = filter && operators.filter((o) => `${o.label} ${o.name} ${o.uid ?? ""}`.toLowerCase().includes(filter.toLowerCase()));
  const rates = new Map(operators.map((o) => [o.id, o]));
  const most = Math.max(1, ...operators.map((o) => o.records_in_per_second ?? 0));
  return html`<div class="picture">
    <div class="tools">
      ${operators.length > 12 && html`<label>Find <input type="search" value=${filter} placeholder="operator" onInput=${(e) => setFilter(e.target.value)} onKeyDown=${(e) => e.key === "Enter" && found.length && (location.hash = to(job, "graph", undefined, { operator: found[0].id }))} /></label>${found && html`<span class="dim">${found.length} found</span>`}`}
      <span class="push"></span>
      <button type="button" class="small" onClick=${() => zoom(1.25)} aria-label="Larger">+</button><button type="button" class="small" onClick=${() => zoom(0.8)} aria-label="Smaller">−</button><button type="button" class="small" onClick=${() => setView(null)}>Fit</button>
    </div>
    <div ref=${frame} class="canvas" style=${{ height: `${height}px` }} tabindex="0" role="group" aria-label="Graph of the operators. Arrow keys move it, plus and minus change its size, 0 fits it." onKeyDown=${keys} onPointerDown=${drag} onWheel=${wheel}>
      ${plan && html`<svg width=${size.width} height=${height} class=${far ? "far" : ""}><g transform="scale(${at.scale}) translate(${-at.x},${-at.y})">
        ${plan.edges.map((e) => html`<${Edge} key=${`${e.from}-${e.to}`} edge=${e} rate=${rates.get(e.to)?.records_in_per_second ?? null} most=${most} chained=${rates.get(e.from)?.chain === rates.get(e.to)?.chain} />`)}
        ${operators.map((o) => html`<${Node} key=${o.id} job=${job} o=${o} node=${plan.nodes.get(o.id)} busy=${load.get(o.chain)?.busy} pressed=${load.get(o.chain)?.pressed} heat=${heat(load.get(o.chain))} chosen=${o.id === chosen} faded=${found && !found.includes(o)} far=${far} />`)}
      </g></svg>`}
    </div>
    <${Legend} of=${[["busy", "busy"], ["pressed", "waits for slower subtasks"], ["idle", "idle"]]} />
  </div>`;
}

const Edge = memo(({ edge, rate: records, most, chained }) => html`<g class="edge ${chained ? "chained" : ""}">
    <path d=${edge.path} stroke-width=${chained ? 1.5 : 1.5 + 4 * Math.sqrt((records ?? 0) / most)} />
    ${records !== null && !chained && html`<text x=${edge.middle.x} y=${edge.middle.y - 7}>${short(records)}/s</text>`}
  </g>`);

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

const Node = memo(({ job, o, node, busy, pressed, heat: warmth, chosen, faded, far }) => html`<a href=${to(job, "graph", undefined, { operator: o.id })} class="node ${warmth} ${chosen ? "chosen" : ""} ${faded ? "faded" : ""}" aria-current=${chosen ? "true" : undefined}>
    <g transform="translate(${node.x - WIDTH / 2},${node.y - HEIGHT / 2})"><title>${`${o.label}, waits ${percent(pressed)}`}</title>
      <rect class="box" width=${WIDTH} height=${HEIGHT} rx="6" />
      <text class="name" x="10" y=${far ? 32 : 20}>${cut(o.label, far ? 10 : 21)}</text>
      <text class="more" x="10" y="37">${o.parallelism}× ${busy === undefined ? "" : `· busy ${percent(busy)}`}</text>
      <g class="load"><rect class="idle" x="10" y="45" width=${WIDTH - 20} height="5" /><rect class="busy" x="10" y="45" width=${(WIDTH - 20) * (busy ?? 0)} height="5" /><rect class="pressed" x=${10 + (WIDTH - 20) * (busy ?? 0)} y="45" width=${(WIDTH - 20) * Math.min(pressed ?? 0, 1 - (busy ?? 0))} height="5" /></g>
    </g>
  </a>`);

// -- the operator beside it -----------------------------------------------------------------------------------------------

const SUBTASKS = [
  { head: "Subtask", cell: (s, of) => `${s.subtask + 1}/${of.parallelism}`, by: (s) => s.subtask },
  { head: "Busy", cell: (s) => html`<${Bar} label=${`busy ${percent(s.busy)}, waits ${percent(s.back_pressured)}`} parts=${[["busy", s.busy], ["pressed", s.back_pressured]]} />`, by: (s) => s.busy, wide: true },
  { head: "%", cell: (s) => percent(s.busy), num: true },
  { head: "In", cell: (s) => count(s.records_in), by: (s) => s.records_in, num: true },
  { head: "Rate", cell: (s) => rate(s.records_in_per_second), by: (s) => s.records_in_per_second, num: true },
  { head: "Out", cell: (s) => count(s.records_out), by: (s) => s.records_out, num: true },
  { head: "Took", cell: (s) => duration(s.seconds * 1000), by: (s) => s.seconds, num: true },
  { head: "Watermark", cell: (s) => watermark(s.watermark), by: (s) => s.watermark, num: true },
  { head: "Lag", cell: (s) => (s.lag_unit === "bytes" ? bytes : count)(s.lag), by: (s) => s.lag, num: true },
  { head: "State", cell: (s) => bytes(s.state_bytes), by: (s) => s.state_bytes, num: true },
  { head: "Retries", cell: (s) => count(s.retries), by: (s) => s.retries, num: true },
  { head: "Host", cell: (s) => s.host ?? "–" },
];
const KEYS = [
  { head: "Key", cell: (k) => html`<code>${k.key}</code>`, wide: true },
  { head: "Share", cell: (k) => html`<${Bar} label=${percent(k.share)} parts=${[["busy", k.share]]} />`, wide: true },
  { head: "%", cell: (k) => percent(k.share), num: true },
  { head: "Subtask", cell: (k) => k.subtask + 1, num: true },
];
const STATES = [
  { head: "State", cell: ([name]) => name },
  { head: "Size", cell: ([, size]) => bytes(size), by: ([, size]) => size, num: true },
];

function skewOf(mine, operator) {
  if (mine.length < 2) return null;
  const average = mean(mine.map((s) => s.records_in));
  const most = mine.reduce((a, b) => (b.records_in > a.records_in ? b : a));
  if (!average) return null;
  const times = most.records_in / average;
  return times < 1.3 ? "Its subtasks receive about as many records each." : `Subtask ${most.subtask + 1}/${operator.parallelism} receives ${times.toFixed(1)} times the average.`;
}

function Side({ job, operator: o, subtasks, wanted }) {
  const mine = subtasks.filter((s) => s.chain === o.chain);
  const items = mine.map((s) => ({ id: s.subtask, href: to(job, "graph", undefined, { operator: o.id, subtask: s.subtask }), label: `Subtask ${s.subtask + 1}/${o.parallelism}: busy ${percent(s.busy)}, waits ${percent(s.back_pressured)}`, kind: s.subtask === wanted.subtask ? "marked" : "", parts: [["busy", s.busy], ["pressed", s.back_pressured]] }));
  return html`<aside class="side" aria-label=${`Operator ${o.name}`}>
    <div class="head"><h2>${o.label}</h2><a class="close" href=${to(job, "graph")}>Close</a></div>
    <p>${skewOf(mine, o)} ${o.functions.length ? "" : "It runs no function of the user."}</p>
    <${Facts} of=${[["Uid", o.uid ?? "none"], ["Subtasks", count(o.parallelism), `at most ${o.max_parallelism}`], ["In", rate(o.records_in_per_second)], ["Out", rate(o.records_out_per_second)], ["State", bytes(o.state_bytes)], ["Watermark", watermark(o.watermark)]]} />
    ${o.functions.length > 0 && html`<h3>How its functions run</h3><ul class="plain">${o.functions.map((f) => html`<li key=${f} class=${wanted.step === "user" ? "guilty" : ""} aria-current=${wanted.step === "user" ? "true" : undefined}><code>${f}</code></li>`)}</ul>`}
    ${o.heavy_keys.length > 0 && html`<h3>Heaviest keys</h3><${Table} label="Heaviest keys" columns=${KEYS} rows=${o.heavy_keys} keyOf=${(k) => k.key} first=${10} markedIf=${(k) => k.key === wanted.key} />`}
    ${mine.length > 0 ? html`<h3>Subtasks</h3>${mine.length > 8 && html`<${Strip} label="Load of the subtasks" form=${percent} most=${1} items=${items} selected=${wanted.subtask} />`}
      <${Table} label=${`Subtasks of ${o.name}`} columns=${SUBTASKS} rows=${mine} extra=${o} keyOf=${(s) => s.subtask} first=${16} sort=${mine.length > 16 ? -2 : null} markedIf=${(s) => s.subtask === wanted.subtask} />` : html`<${Empty}>Its subtasks have run no round yet.<//>`}
    ${Object.keys(o.states).length > 0 && html`<h3>State</h3><${Table} label="States" columns=${STATES} rows=${Object.entries(o.states)} sort=${-2} keyOf=${([name]) => name} markedIf=${([, size]) => wanted.finding === "growing-state" && size === Math.max(...Object.values(o.states))} />`}
  </aside>`;
}
