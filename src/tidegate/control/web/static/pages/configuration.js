// Configuration and environment of the job.
import { page } from "../api.js";
import { Answer, Empty, html, Section, useState } from "../parts/ui.js";
import { plural } from "../parts/format.js";
import { Table } from "../parts/table.js";

const COLUMNS = [
  { head: "Key", cell: ([key]) => html`<code>${key}</code>`, by: ([key]) => key },
  { head: "Value", cell: ([, value]) => html`<code>${value}</code>`, wide: true },
];

export function ConfigurationPage() {
  const { details } = page.value;
  const [filter, setFilter] = useState("");
  const fits = ([key, value]) => `${key} ${value}`.toLowerCase().includes(filter.toLowerCase());
  const list = (title, of) => {
    const rows = Object.entries(of).sort().filter(fits);
    return html`<${Section} title=${title}>${rows.length ? html`<${Table} label=${title} columns=${COLUMNS} rows=${rows} keyOf=${([key]) => key} first=${300} />` : html`<${Empty}>${filter ? `Nothing contains “${filter}”.` : "The driver has not told it."}<//>`}<//>`;
  };
  return html`
    <${Answer} ask="How was it started?">${plural(Object.keys(details.configuration).length, "key")} were set; secrets are masked. Its directory is <code>${details.directory}</code>${details.is_temporary ? ", made for this run alone" : ""}.<//>
    <label class="filter">Filter <input type="search" value=${filter} placeholder="key or value" onInput=${(e) => setFilter(e.target.value)} /></label>
    ${list("Configuration", details.configuration)}
    ${list("Environment", details.environment)}`;
}
