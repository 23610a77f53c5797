// Pages whose scripts are read when they are opened first.
import { signal } from "../vendor/signals.js";
import { html, Trouble } from "./ui.js";

const loaded = signal({});
/** A page whose script is read when it is opened first. */
export function Lazy({ name, part }) {
  const known = loaded.value[name];
  if (known instanceof Error) return html`<${Trouble} problem=${{ message: "A part of the page could not be read. Reload the page." }} />`;
  if (known) return html`<${known[part]} />`;
  const keep = (found) => (loaded.value = { ...loaded.value, [name]: found });
  import(`../pages/${name}.js`).then(keep, keep);
  return null;
}
