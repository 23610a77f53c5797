// Numbers, sizes and times as people read them.
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export const NONE = "–";
export const count = (value) => (known(value) ? grouped.format(value) : NONE);

/** Three digits and a unit: 48.2 k */
export function short(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size < 1000) return size < 10 && !Number.isInteger(value) ? value.toFixed(1) : grouped.format(value);
  const power = Math.min(4, Math.floor(Math.log10(size) / 3));
  return `${digits(value / 1000 ** power)} ${["", "k", "M", "G", "T"][power]}`;
}
const digits = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1));

export const rate = (value) => (known(value) ? `${short(value)}/s` : NONE);

export function bytes(value) {
  if (!known(value)) return NONE;
  let power = 0;
  for (; Math.abs(value) >= 1024 && power < 5; power++) value /= 1024;
  return power ? `${digits(value)} ${["", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}` : `${value} B`;
}

export function duration(ms) {
  if (!known(ms)) return NONE;
  if (ms < 1) return ms ? "< 1 ms" : "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return span(ms);
}

/** Whole units, for ages: 2 h 13 min */
export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  const [a, b] = [units[first], units[first + 1]];
  const rest = Math.floor((seconds % a[1]) / b[1]);
  return `${Math.floor(seconds / a[1])} ${a[0]}${rest ? ` ${rest} ${b[0]}` : ""}`;
}

export const percent = (share) => (known(share) ? `${share > 0 && share < 0.01 ? "< 1" : Math.round(share * 100)} %` : NONE);

const two = (n) => String(n).padStart(2, "0");
export function clock(ms) {
  if (!known(ms)) return NONE;
  const t = new Date(ms);
  return `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}
export function day(ms) {
  if (!known(ms)) return NONE;
  const t = new Date(ms);
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${clock(ms)}`;
}

/** Event time. The ends of time are no dates. */
export const watermark = (ms) => (!known(ms) ? NONE : ms < -8e15 ? "none yet" : ms > 8e15 ? "end of input" : day(ms));

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
};
