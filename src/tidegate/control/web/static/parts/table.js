// A table that sorts, keeps its rows by key, and marks the one that a finding names.
import { html, memo, useEffect, useRef, useState } from "./ui.js";

const FIRST = 60;

const Row = memo(({ row, columns, mark, href, extra }) => {
  const line = useRef();
  useEffect(() => {
    if (mark) line.current?.scrollIntoView({ block: "nearest" });
  }, [mark]);
  return html`<tr ref=${line} class=${mark ? "guilty" : ""} aria-current=${mark ? "true" : undefined}>
    ${columns.map((c, i) => {
      const cell = c.cell(row, extra);
      const linked = i === 0 && href ? html`<a href=${href}>${cell}</a>` : cell;
      return i === 0 ? html`<th scope="row" class=${c.wide ? "wide" : ""}>${linked}</th>` : html`<td class=${c.num ? "num" : c.wide ? "wide" : ""} data-head=${c.head}>${linked}</td>`;
    })}
  </tr>`;
});

/**
 * `columns`: {head, cell(row), by(row) to sort, num, wide}. They are made once for a page: rows compare them.
 * `markedIf(row)`: the row that a finding names: it is marked, and first if it would not be seen. `extra`: what cells need beside their row.
 */
export function Table({ label, columns, rows, keyOf, hrefOf, markedIf, extra, first = FIRST, sort = null }) {
  const [order, setOrder] = useState(sort);
  const [all, setAll] = useState(false);
  let shown = rows;
  if (order) {
    const by = columns[Math.abs(order) - 1].by;
    shown = [...rows].sort((a, b) => ((by(a) ?? -Infinity) > (by(b) ?? -Infinity) ? 1 : by(a) === by(b) ? 0 : -1) * Math.sign(order));
  }
  const guilty = markedIf ? shown.filter(markedIf) : [];
  if (guilty.some((row) => shown.indexOf(row) >= first)) shown = [...guilty, ...shown.filter((row) => !guilty.includes(row))];
  const cut = all ? shown : shown.slice(0, first);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <thead><tr>${columns.map((c, i) => {
        const sorted = Math.abs(order) === i + 1 ? (order > 0 ? "ascending" : "descending") : undefined;
        const turn = () => setOrder(order === -(i + 1) ? i + 1 : -(i + 1));
        return html`<th scope="col" class=${c.num && i ? "num" : ""} aria-sort=${sorted} title=${c.title}>
          ${c.by ? html`<button type="button" onClick=${turn}>${c.head}<i aria-hidden="true">${sorted ? (order > 0 ? "↑" : "↓") : ""}</i></button>` : c.head}</th>`;
      })}</tr></thead>
      <tbody>${cut.map((row) => html`<${Row} key=${keyOf(row)} row=${row} columns=${columns} extra=${extra} mark=${guilty.includes(row)} href=${hrefOf?.(row)} />`)}</tbody>
    </table>
    ${rows.length > first && html`<button type="button" class="more" onClick=${() => setAll(!all)}>${all ? `Show ${first}` : `Show all ${rows.length}`}</button>`}
  </div>`;
}
