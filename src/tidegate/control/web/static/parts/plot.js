// A trend as lines in SVG, read with the pointer or the arrow keys, with its table beside it.
import { Fold, html, memo, useState } from "./ui.js";
import { clock, NONE } from "./format.js";

const WIDTH = 600, HEIGHT = 120;

function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((n) => n * power >= value) * power;
}

/** `xs`: seconds, or numbers if `numbered`. `series`: [name, values], null where there is none. `form`: how a value reads. */
export function Plot({ title, unit, xs, series, form, numbered = false }) {
  const [at, setAt] = useState(null);
  const top = niceTop(Math.max(...series.flatMap(([, values]) => values.map((v) => v ?? 0))));
  const [low, high] = [xs[0] ?? 0, xs[xs.length - 1] ?? 1];
  const x = (i) => (high > low ? ((xs[i] - low) / (high - low)) * WIDTH : WIDTH / 2);
  const y = (v) => HEIGHT - (Math.max(v, 0) / top) * HEIGHT;
  const name = numbered ? (v) => `${v}` : (v) => clock(v * 1000);
  const read = (e) => {
    const box = e.currentTarget.getBoundingClientRect();
    const wanted = low + ((e.clientX - box.left) / box.width) * (high - low);
    setAt(xs.reduce((best, v, i) => (Math.abs(v - wanted) < Math.abs(xs[best] - wanted) ? i : best), 0));
  };
  const keys = (e) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!step) return;
    e.preventDefault();
    setAt(Math.min(xs.length - 1, Math.max(0, (at ?? xs.length - 1) + step)));
  };
  const shown = at === null || at >= xs.length ? xs.length - 1 : at;
  const leave = () => setAt(null);
  return html`<figure class="plot">
    <figcaption><b>${title}</b> <span class="dim">${unit}</span><span class="push"></span>${at !== null && html`<span class="dim num">${name(xs[shown])}</span>`}
      ${series.map(([label, values], i) => html`<span class="key line-${i + 1}">${series.length > 1 && label} <b class="num">${values[shown] === undefined || values[shown] === null ? NONE : form(values[shown])}</b></span>`)}</figcaption>
    <div class="canvas">
      <div class="ys num" aria-hidden="true"><span>${form(top)}</span><span>${form(top / 2)}</span><span>${form(0)}</span></div>
      <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" tabindex="0" aria-label=${`${title}. The last value is ${series.map(([label, values]) => `${label} ${form(values[xs.length - 1])}`).join(", ")}. Arrow keys read the others.`}
        onPointerMove=${read} onPointerLeave=${leave} onBlur=${leave} onKeyDown=${keys}>
        ${[0, 0.5, 1].map((part) => html`<line class="grid" x2=${WIDTH} y1=${part * HEIGHT} y2=${part * HEIGHT} />`)}
        ${series.map(([, values], i) => html`<${Line} values=${values} number=${i + 1} path=${pathOf(values, x, y)} bottom=${HEIGHT} />`)}
        ${at !== null && html`<line class="cursor" x1=${x(shown)} x2=${x(shown)} y2=${HEIGHT} />`}
      </svg>
      <div class="xs num" aria-hidden="true"><span>${xs.length > 0 && name(low)}</span><span>${xs.length > 1 && name(high)}</span></div>
    </div>
    <${Fold} title=${`Table of ${title.toLowerCase()}`}><${Values} xs=${xs} series=${series} form=${form} name=${name} /><//>
  </figure>`;
}

/** The pieces of the line, each as the text of its points: there are gaps where a value is missing. */
function pathOf(values, x, y) {
  const pieces = [[]];
  values.forEach((v, i) => (v === null || v === undefined ? pieces.push([]) : pieces[pieces.length - 1].push(`${x(i).toFixed(1)},${y(v).toFixed(1)}`)));
  return pieces.filter((p) => p.length).map((p) => p.join("L")).join("M");
}

const Line = memo(({ number, path, bottom }) => {
  const pieces = path ? path.split("M") : [];
  const area = (p) => `M${p}L${p.split("L").pop().split(",")[0]},${bottom}L${p.split(",")[0]},${bottom}Z`;
  return html`<g class="line-${number}">${number === 1 && pieces.map((p) => html`<path class="area" d=${area(p)} />`)}${pieces.map((p) => html`<path d=${`M${p}${p.includes("L") ? "" : "l.01,0"}`} />`)}</g>`;
});

/** The latest 100 values, newest first. They are drawn only while the table is open. */
function Values({ xs, series, form, name }) {
  return html`<div class="scroll low" tabindex="0" role="region" aria-label="Values"><table>
    <thead><tr><th scope="col">At</th>${series.map(([label]) => html`<th scope="col" class="num">${label}</th>`)}</tr></thead>
    <tbody>${xs.map((_, j) => xs.length - 1 - j).slice(0, 100).map((i) => html`<tr key=${xs[i]}><th scope="row" class="num">${name(xs[i])}</th>${series.map(([, values]) => html`<td class="num">${values[i] === null || values[i] === undefined ? NONE : form(values[i])}</td>`)}</tr>`)}</tbody></table></div>`;
}
