// Submit: programs that were uploaded, and how to run one.
import { change, followed, me, to } from "../api.js";
import { Ago, Answer, Empty, Fold, html, Section, Trouble, useAnswer, useState, Waiting } from "../parts/ui.js";
import { bytes, plural } from "../parts/format.js";

const FIELDS = [["entry", "Entry", "a function, or FILE:FUNCTION of a .zip"], ["parallelism", "Parallelism", "as configured"], ["arguments", "Arguments", "--name value"], ["savepoint", "Resume from savepoint", "an address"]];

export function ProgramsPage() {
  const [asked, setAsked] = useState(0);
  const [problem, setProblem] = useState(null);
  const [told, tell] = useState("");
  const programs = useAnswer(me.value.can_submit ? `/programs?${asked}` : null);
  const doing = async (act, words) => {
    setProblem(null);
    tell("");
    try {
      const answer = await act();
      tell(words(answer));
      setAsked(asked + 1);
    } catch (met) {
      tell("");
      setProblem(met);
    }
  };
  const upload = (event) => {
    event.preventDefault();
    const file = event.target.elements.file.files[0];
    if (file) doing(() => change("/programs", file, "POST", { name: file.name }), () => `${file.name} is here now.`);
  };
  return html`
    <${Answer} ask="Which program shall run?">${me.value.can_submit ? "Upload a .py or .zip, then run it with its arguments." : "This server takes no programs."}<//>
    ${!me.value.can_submit && html`<${Empty}>Start it with <code>tidegate web --allow-submit</code> to allow it. Whoever can log in then runs code as you.<//>`}
    ${me.value.can_submit && html`
      <form class="fields" onSubmit=${upload}><label>Program <input type="file" name="file" accept=".py,.zip" required /></label><button class="primary">Upload</button></form>
      <${Trouble} problem=${problem} />${told && html`<p role="status">${told}</p>`}
      <${Section} title="Programs"><${Waiting} of=${programs} what="the programs">${programs.value?.length ? html`<ul class="programs">${programs.value.map((p) => html`<${Program} key=${p.id} program=${p} doing=${doing} tell=${tell} />`)}</ul>` : html`<${Empty}>None was uploaded yet.<//>`}<//><//>`}`;
}

function Program({ program, doing, tell }) {
  const [sure, setSure] = useState(false);
  const path = `/programs/${encodeURIComponent(program.id)}`;
  const run = (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value !== ""));
    const body = { ...given };
    if (given.parallelism) body.parallelism = Number(given.parallelism);
    if (given.arguments) body.arguments = given.arguments.match(/"[^"]*"|\S+/g).map((a) => a.replace(/^"|"$/g, ""));
    if (given.configuration) body.configuration = Object.fromEntries(given.configuration.split("\n").filter((l) => l.trim()).map((l) => l.split(/[:=]\s*(.*)/s).slice(0, 2).map((t) => t.trim())));
    const start = async () => followed("-", await change(`${path}/run`, body), () => tell(`${program.name} starts …`));
    doing(start, ({ result }) => html`${program.name} runs as <a href=${to(result)}>${result}</a>.`);
  };
  const title = html`<b>${program.name}</b> <span class="dim">${bytes(program.size)}, <${Ago} ms=${program.uploaded_ms} /></span>`;
  return html`<li><${Fold} title=${title}>
    <form class="fields" onSubmit=${run}>${FIELDS.map(([name, label, hint]) => html`<label key=${name}>${label} <input name=${name} type=${name === "parallelism" ? "number" : "text"} min="1" placeholder=${hint} /></label>`)}
      <label class="wide">Configuration <textarea name="configuration" rows="3" placeholder="key: value, one a line"></textarea></label>
      <button class="primary">Run</button>
      ${sure ? html`<button type="button" class="danger" onClick=${() => doing(() => change(path, {}, "DELETE"), () => `${program.name} is gone.`)}>Delete it for good</button>` : html`<button type="button" onClick=${() => setSure(true)}>Delete …</button>`}
    </form><//></li>`;
}
