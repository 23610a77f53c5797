// What the page knows: the route, the jobs, the open job, and whether the server answers. And how it asks.
import { signal, computed } from "./vendor/signals.js";

export const now = signal(Date.now());
export const route = signal(parsed(location.hash));
export const me = signal({ csrf: "", can_submit: false, version: "", server: "" });
export const jobs = signal(null);
export const page = signal(null); // JobPage of the open job
export const gone = signal(null); // Problem: the open job is not known
export const silent = signal(null); // since when the server does not answer, ms
export const locked = signal(false); // the login has expired
export const heard = signal(0); // when the server last told anything, ms

setInterval(() => (now.value = Date.now()), 1000);
addEventListener("hashchange", () => (route.value = parsed(location.hash)));

function parsed(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decoded);
  if (parts[0] !== "jobs" || parts.length < 2) return { top: parts[0] || "jobs", query: {} };
  return { top: "job", job: parts[1], page: parts[2] || "overview", item: parts[3], query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const querystring = (query) => {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

/** The address of a page of a job within this page. */
export const to = (job, name = "overview", item, query = {}) =>
  `#/jobs/${[job, name, item].filter((part) => part !== undefined && part !== null).map(encodeURIComponent).join("/")}${querystring(query)}`;

/** Where a finding leads: the page with the guilty subtask, key, step or checkpoint selected. */
export const linkOf = (job, f) =>
  to(job, f.page, f.checkpoint_id, { operator: f.operator, subtask: f.subtask, key: f.key, step: f.step, finding: f.kind });

/** The parts of the job that the route marks. */
export const marked = computed(() => {
  const { operator, subtask, key, step, finding } = route.value.query;
  return { operator: numeral(operator), subtask: numeral(subtask), key, step, finding };
});
const numeral = (text) => (text === undefined ? undefined : Number(text));

// -- asking ------------------------------------------------------------------------------------------------------------

export const jobPath = (job, rest = "") => `/jobs/${encodeURIComponent(job)}${rest}`;

/** Ask the server. Throws {code, message}, what a person can read. */
export async function ask(path, { query = {}, ...options } = {}) {
  let answer;
  try {
    answer = await fetch(`/tidegate/page${path}${querystring(query)}`, { credentials: "same-origin", ...options });
  } catch {
    throw { code: "unanswered", message: "The server does not answer." };
  }
  const content = await answer.json().catch(() => null);
  if (answer.status === 401) locked.value = true;
  if (!answer.ok) throw content?.message ? content : { code: "failed", message: `The server answered ${answer.status}.` };
  return content;
}

/** Ask for a change. `body`: an object, or a file. */
export const change = (path, body = {}, method = "POST", query = {}) => {
  const raw = body instanceof Blob;
  const headers = { "X-Tidegate-CSRF": me.value.csrf, "Content-Type": raw ? "application/octet-stream" : "application/json" };
  return ask(path, { method, headers, query, body: raw ? body : JSON.stringify(body) });
};

/** Follow an operation to its end, which may come after that of the job. Throws what a person can read if it failed. */
export async function followed(job, operation, show) {
  for (let failures = 0; operation.status === "running"; ) {
    show(operation);
    try {
      operation = await ask(jobPath(job, `/operations/${encodeURIComponent(operation.id)}`), { query: { wait: 10 } });
      failures = 0;
    } catch (problem) {
      if (++failures === 5) throw problem;
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
  if (operation.status !== "succeeded") throw operation.problem ?? { message: "It failed." };
  return operation;
}

/** Listen to events until the returned function is called. Connects again as often as needed, to the address that `path()` gives then. */
export function listen(path, handlers) {
  let source, retry, closed;
  const open = () => {
    source = new EventSource(`/tidegate/page${path()}`);
    source.onopen = () => ((silent.value = null), (locked.value = false));
    for (const [name, take] of Object.entries(handlers))
      source.addEventListener(name, (event) => {
        silent.value = null;
        heard.value = Date.now();
        take(JSON.parse(event.data));
      });
    source.onerror = () => {
      silent.value ??= heard.value || Date.now();
      source.close(); // it would connect to the same address again
      if (closed) return;
      retry = setTimeout(open, 2000);
      ask("/me").then((known) => (me.value = known), () => {}); // says whether the login has expired
    };
  };
  open();
  return () => {
    closed = true;
    clearTimeout(retry);
    source.close();
  };
}

/** The new value, with every part that is equal to the old one taken from it: rows that did not change are not drawn again. */
export function share(old, fresh) {
  if (old === fresh || typeof fresh !== "object" || !fresh || typeof old !== "object" || !old) return fresh;
  if (Array.isArray(old) !== Array.isArray(fresh)) return fresh;
  let same = true;
  const names = Object.keys(fresh);
  for (const name of names) {
    const kept = share(old[name], fresh[name]);
    if (kept !== old[name] || !(name in old)) same = false;
    fresh[name] = kept;
  }
  return same && Object.keys(old).length === names.length ? old : fresh;
}

/** Lists of rounds and checkpoints lose their oldest item, so items are compared by their number. */
export function shareList(old, fresh, number) {
  const known = new Map((old || []).map((item) => [item[number], item]));
  return fresh.map((item) => share(known.get(item[number]), item));
}

export function takePage(fresh) {
  const old = page.peek()?.card.job_id === fresh.card.job_id ? page.peek() : null;
  if (old) {
    fresh.details.rounds = shareList(old.details.rounds, fresh.details.rounds, "round");
    fresh.details.checkpoints = shareList(old.details.checkpoints, fresh.details.checkpoints, "checkpoint_id");
  }
  page.value = share(old, fresh);
}
