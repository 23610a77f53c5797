// The page: the bar on top, and what the route asks for.
import { render } from "./vendor/preact.js";
import { effect, signal } from "./vendor/signals.js";
import { ask, change, gone, heard, jobPath, jobs, listen, locked, me, now, page, route, share, shareList, silent, takePage } from "./api.js";
import { html } from "./parts/ui.js";
import { Lazy } from "./parts/lazy.js";
import { clock, span } from "./parts/format.js";
import { JobsPage } from "./pages/jobs.js";
import { JobPage } from "./pages/job.js";

const THEMES = ["auto", "light", "dark"];
const theme = signal(document.documentElement.dataset.theme);
function turnTheme() {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % 3];
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem("tidegate-theme", theme.value);
  } catch {} // the browser stores nothing: the choice lasts as long as the page
}

/** Whether what is shown is live; if not, since when. */
function Live() {
  if (silent.value !== null) return html`<span class="live bad">no answer for ${span(now.value - silent.value)}</span>`;
  if (!heard.value) return html`<span class="live">connecting</span>`;
  return html`<span class="live good">live</span>`;
}

function Silence() {
  if (locked.value)
    return html`<p class="silence" role="alert">You are not logged in any more. Open a new address that <code>tidegate web</code> prints.</p>`;
  if (silent.value === null) return null;
  const shown = heard.value ? `Shown is what it said at ${clock(heard.value)}, ${span(now.value - heard.value)} ago.` : "It has not answered yet.";
  return html`<p class="silence" role="status">The server does not answer. ${shown} The page connects again by itself.</p>`;
}

function App() {
  const { top } = route.value;
  return html`
    <a class="skip" href="#content" onClick=${(e) => (e.preventDefault(), document.getElementById("content").focus())}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/jobs"><img src="/assets/icon.svg" alt="" width="20" height="20" />Tidegate</a>
      ${top === "job" && html`<nav aria-label="Path"><a href="#/jobs">Jobs</a></nav>`}
      <span class="push"></span>
      <${Live} />
      ${me.value.can_submit && html`<a href="#/programs">Submit</a>`}
      ${me.value.csrf && html`<button type="button" class="small" onClick=${() => change("/../logout")}>Log out</button>`}
      <button type="button" class="small" onClick=${turnTheme} title="Colours: as the system, light, dark"><span class="roomy">Theme: </span>${theme.value}</button>
    </header>
    <${Silence} />
    ${top === "job" ? html`<${JobPage} />` : html`<main id="content" tabindex="-1">${top === "programs" ? html`<${Lazy} name="programs" part="ProgramsPage" />` : html`<${JobsPage} />`}</main>`}`;
}

const openJob = signal(undefined);
effect(() => (openJob.value = route.value.job));
effect(() => {
  const job = openJob.value;
  gone.value = null;
  if (job === undefined)
    return listen(() => "/events", { jobs: (cards) => (jobs.value = share(jobs.peek(), shareList(jobs.peek(), cards, "job_id"))) });
  page.value = null;
  return listen(() => jobPath(job, "/events"), { job: (fresh) => ((gone.value = null), takePage(fresh)), gone: (problem) => (gone.value = problem) });
});
effect(() => {
  const name = page.value?.card.name;
  document.title = route.value.job === undefined || !name ? "Tidegate" : `${name} · Tidegate`;
});
ask("/me").then((known) => (me.value = known), () => {});
render(html`<${App} />`, document.getElementById("page"));
