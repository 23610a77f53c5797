// The small parts that every page uses. All texts become text nodes.
import { h } from "../vendor/preact.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import htm from "../vendor/htm.js";
import { now, ask } from "../api.js";
import { day, span, NONE } from "./format.js";

export { useEffect, useRef, useState };
export const html = htm.bind(h);

/** A component that is drawn again only if a property changed. It must not read signals itself. */
export const memo = (draw) =>
  function Memo(props) {
    this.shouldComponentUpdate = (next) => Object.keys({ ...next, ...props }).some((name) => next[name] !== this.props[name]);
    return draw(props);
  };

export const Ago = ({ ms }) => (ms ? html`<time dateTime=${new Date(ms).toISOString()} title=${day(ms)}>${span(now.value - ms)} ago</time>` : NONE);
export const When = ({ ms }) => html`<span class="num">${day(ms)}</span> <span class="dim">(<${Ago} ms=${ms} />)</span>`;

/** The answer to the question of a page, before any table. */
export const Answer = ({ ask: question, children }) => html`<header class="answer"><h1>${question}</h1><p>${children}</p></header>`;
export const Section = ({ title, aside, children, ...rest }) =>
  html`<section ...${rest}><div class="head"><h2>${title}</h2>${aside}</div>${children}</section>`;
export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;
export const Trouble = ({ problem }) => problem && html`<p class="trouble" role="alert">${problem.message}</p>`;
export const Facts = ({ of }) =>
  html`<dl class="facts">${of.map((fact) => fact && html`<div key=${fact[0]} title=${fact[2]}><dt>${fact[0]}</dt><dd>${fact[1]}</dd></div>`)}</dl>`;

const TONES = { RUNNING: "good", FINISHED: "calm", CREATED: "calm", CANCELED: "calm", SUSPENDED: "calm", FAILED: "bad", FAILING: "bad", died: "bad", RESTARTING: "warn", CANCELLING: "warn", unknown: "warn", completed: "good", failed: "bad", succeeded: "good", failing: "bad", warning: "warn" };
export const Pill = ({ of }) => html`<span class="pill ${TONES[of] || "calm"}">${of.toLowerCase()}</span>`;
export const stateOf = (card) => (["died", "unknown"].includes(card.life) ? card.life : card.state);

export function Copy({ text, what = "Copy" }) {
  const [done, setDone] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone("Copied");
    } catch {
      setDone("Select it and press Ctrl+C");
    }
    setTimeout(setDone, 2500, "");
  };
  return html`<button type="button" class="small" onClick=${copy} aria-live="polite">${done || what}</button>`;
}

/** Details that are drawn only while they are open. */
export function Fold({ title, open = false, children }) {
  const [shown, show] = useState(open);
  return html`<details open=${shown} onToggle=${(e) => show(e.currentTarget.open)}><summary>${title}</summary>${shown && children}</details>`;
}

export const Command = ({ text }) => html`<div class="command"><code tabindex="0">${text}</code><${Copy} text=${text} /></div>`;

/** A part of a whole, as a bar. `parts`: [class, share, name]. */
export const Bar = memo(({ parts, label }) => {
  let x = 0;
  return html`<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${label}>
    <rect class="track" width="100" height="8" />
    ${parts.map(([kind, share, at]) => {
      const from = at === undefined ? x : at * 100;
      x = from + share * 100;
      return html`<rect class=${kind} x=${from} width=${Math.max(share * 100, share > 0 ? 0.6 : 0)} height="8" />`;
    })}
  </svg>`;
});

/** What the server answers to one question. Asked again if a dependency changes, and every `every` milliseconds. */
export function useAnswer(path, every = 0) {
  const [state, set] = useState({});
  useEffect(() => {
    if (!path) return set({});
    let open = true;
    const load = () => ask(path).then((value) => open && set({ value, path }), (problem) => open && set((old) => ({ ...(old.path === path ? old : {}), problem, path })));
    load();
    const timer = every && setInterval(load, every);
    return () => ((open = false), clearInterval(timer));
  }, [path, every]);
  return state.path === path ? state : {};
}

/** Loading, failed, or there. Says in words what it waits for. */
export const Waiting = ({ of, what, children }) =>
  of.value !== undefined ? html`<${Trouble} problem=${of.problem} />${children}` : of.problem ? html`<${Trouble} problem=${of.problem} />` : html`<p class="empty" role="status">Reading ${what} …</p>`;
