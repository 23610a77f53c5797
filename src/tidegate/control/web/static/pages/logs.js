// Logs of the driver, live.
import { ask, jobPath, listen, route } from "../api.js";
import { Answer, Empty, html, memo, Trouble, useEffect, useRef, useState } from "../parts/ui.js";
import { plural } from "../parts/format.js";

const MOST_LINES = 5000;
let number = 0;
const kindOf = (text) => (/\b(ERROR|FATAL|CRITICAL|Traceback)\b/.test(text) ? "bad" : /\bWARN(ING)?\b/.test(text) ? "warn" : "");
const linesOf = (text) => text.replace(/\n$/, "").split("\n").map((line) => ({ id: ++number, text: line, kind: kindOf(line) }));

export function LogsPage() {
  const { job } = route.value;
  const [lines, setLines] = useState(null);
  const [problem, setProblem] = useState(null);
  const [filter, setFilter] = useState("");
  const [follow, setFollow] = useState(true);
  const box = useRef();
  useEffect(() => {
    let close = () => {};
    let open = true;
    const add = (text) => text && setLines((old) => [...(old ?? []), ...linesOf(text)].slice(-MOST_LINES));
    ask(jobPath(job, "/log")).then(
      (part) => {
        if (!open) return;
        setLines([]);
        add(part.text);
        let { to } = part; // whoever connects again reads on from here
        close = listen(() => jobPath(job, `/log/events?from=${to}`), { lines: (more) => ((to = more.to), add(more.text)) });
      }, setProblem);
    return () => ((open = false), close());
  }, [job]);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, follow, filter]);
  const shown = (lines ?? []).filter((line) => line.text.toLowerCase().includes(filter.toLowerCase()));
  const bad = (lines ?? []).filter((line) => line.kind === "bad").length;
  const scrolled = (e) => setFollow(e.target.scrollHeight - e.target.scrollTop - e.target.clientHeight < 24);
  return html`
    <${Answer} ask="What does the driver say?">${problem ? "Its log cannot be read." : !lines ? "" : `${plural(lines.length, "line")} at the end of its log; ${bad ? `${bad} ${bad === 1 ? "reports an error" : "report errors"}.` : "none reports an error."}`}<//>
    <${Trouble} problem=${problem} />
    ${lines && html`<div class="fields"><label>Filter <input type="search" value=${filter} placeholder="text" onInput=${(e) => setFilter(e.target.value)} /></label><label class="check"><input type="checkbox" checked=${follow} onChange=${(e) => setFollow(e.target.checked)} /> Follow</label></div>
      ${shown.length ? html`<div ref=${box} class="log" tabindex="0" role="region" aria-label="Log of the driver" onScroll=${scrolled}>${shown.map((line) => html`<${Line} key=${line.id} line=${line} />`)}</div>` : html`<${Empty}>${filter ? `No line contains “${filter}”.` : "The log is empty so far."}<//>`}`}`;
}

const Line = memo(({ line }) => html`<div class=${line.kind}>${line.text || " "}</div>`);
