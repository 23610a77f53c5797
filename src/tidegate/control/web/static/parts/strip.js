// A strip of bars, one for each checkpoint, round or subtask: stacked, in the DOM, walked with the arrow keys.
import { html, memo } from "./ui.js";

const HEIGHT = 120;

const Column = memo(({ item, x, width, scale, selected, stop }) => {
  let y = HEIGHT;
  return html`<a href=${item.href} class="column ${item.kind ?? ""} ${selected ? "selected" : ""}" tabindex=${stop ? 0 : -1} aria-label=${item.label} aria-current=${selected ? "true" : undefined}>
    <title>${item.label}</title>
    <rect class="hit" x=${x} width=${width} y="0" height=${HEIGHT + 8} />
    ${item.parts.map(([kind, value]) => {
      const height = Math.max(value * scale, value > 0 ? 0.75 : 0);
      y -= height;
      return html`<rect class=${kind} x=${x + width * 0.12} width=${width * 0.76} y=${y} height=${height} />`;
    })}
    <rect class="foot" x=${x + width * 0.12} width=${width * 0.76} y=${HEIGHT + 3} height="4" />
  </a>`;
});

/** `items`: {id, href, label, kind, parts: [[class, value]]}, oldest first. `form`: how the highest value reads. `most`: of the scale. */
export function Strip({ label, items, selected, form, most }) {
  const top = most ?? Math.max(1e-9, ...items.map((item) => item.parts.reduce((sum, [, value]) => sum + value, 0)));
  const width = 1000 / Math.max(items.length, 24);
  const chosen = items.some((item) => item.id === selected) ? selected : items[items.length - 1]?.id;
  const walk = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -items.length, End: items.length }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...event.currentTarget.querySelectorAll("a")];
    const to = Math.min(all.length - 1, Math.max(0, all.indexOf(document.activeElement) + step));
    all[to]?.focus();
    if (items[to]) location.hash = items[to].href;
  };
  return html`<div class="strip">
    <span class="scale num" aria-hidden="true">${form(top)}</span>
    <svg viewBox="0 0 1000 ${HEIGHT + 8}" preserveAspectRatio="none" role="group" aria-label=${`${label}. Arrow keys walk from bar to bar.`} onKeyDown=${walk}>
      <line class="grid" x1="0" x2="1000" y1="0.5" y2="0.5" /><line class="grid" x1="0" x2="1000" y1=${HEIGHT / 2} y2=${HEIGHT / 2} /><line class="grid" x1="0" x2="1000" y1=${HEIGHT} y2=${HEIGHT} />
      ${items.map((item, i) => html`<${Column} key=${item.id} item=${item} x=${i * width} width=${width} scale=${HEIGHT / top} selected=${item.id === selected} stop=${item.id === chosen} />`)}
    </svg>
  </div>`;
}

export const Legend = ({ of }) => html`<ul class="legend">${of.map(([kind, name, value]) => html`<li key=${name}><i class=${kind}></i>${name}${value !== undefined && html` <b class="num">${value}</b>`}</li>`)}</ul>`;
