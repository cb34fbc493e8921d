// Numbers, times and sizes as text. Pure.

const COUNT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const PHYSICAL = 18n; // a timestamp is milliseconds << 18 | counter

/** The text for an unknown value. */
export const UNKNOWN = "–";

export function count(number) {
  return known(number) ? COUNT.format(number) : UNKNOWN;
}

/** A number with its noun. */
export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function rate(rowsPerSecond) {
  if (!known(rowsPerSecond)) return UNKNOWN;
  const short =
    rowsPerSecond < 10
      ? String(Math.round(rowsPerSecond * 10) / 10)
      : SHORT.format(Math.round(rowsPerSecond));
  const text = short.replace("K", "k");
  return `${text} rows/s`;
}

/** A duration: 0.42 s, 12.3 s, 5 min 3 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** A duration in its largest unit, for narrow places. */
export function shortly(seconds) {
  return duration(seconds).split(" ").slice(0, 2).join(" ");
}

export function bytes(number) {
  if (!known(number)) return UNKNOWN;
  let value = Number(number);
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** A time in milliseconds since the epoch: 2026-11-16 09:40:00.123. */
export function moment(ms) {
  return new Date(ms).toISOString().replace("T", " ").slice(0, 23);
}

/** The time of day of a time in milliseconds: 09:40:00. */
export function clock(ms) {
  return moment(ms).slice(11, 19);
}

/** A time of the API as text; the text for unknown when there is none. */
export function stated(text) {
  const ms = text ? Date.parse(text) : NaN;
  return Number.isNaN(ms) ? UNKNOWN : moment(ms);
}

/** The same without milliseconds. */
export function statedSecond(text) {
  return stated(text).slice(0, 19);
}

/** The wall time of a database timestamp in milliseconds; null for none. */
export function msOf(ts) {
  return isTs(ts) ? Number(BigInt(ts) >> PHYSICAL) : null;
}

/** The first timestamp of a millisecond. */
export function tsOf(ms) {
  return String(BigInt(Math.floor(ms)) << PHYSICAL);
}

export function timeOf(ts) {
  const ms = msOf(ts);
  return ms === null ? UNKNOWN : moment(ms);
}

/**
 * Parse a timestamp that a user entered: its digits, or a time in UTC such as 2026-11-16 09:40, or 09:40:00.5 of the
 * day of `nearMs`. Null when it is neither.
 */
export function parsedTs(text, nearMs) {
  const given = text.trim();
  if (/^\d{15,19}$/.test(given)) return given;
  const day = /^\d{1,2}:/.test(given) ? `${moment(nearMs).slice(0, 10)} ` : "";
  const parts = /^(\d{4}-\d{2}-\d{2})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d{1,3})?))?)?Z?$/.exec(
    day + given,
  );
  if (parts === null) return null;
  const [, date, hour = "00", minute = "00", second = "00"] = parts;
  const ms = Date.parse(`${date}T${hour.padStart(2, "0")}:${minute}:${second}Z`);
  return Number.isNaN(ms) || ms < 0 ? null : tsOf(ms);
}

function isTs(ts) {
  return ts !== null && ts !== undefined && ts !== "" && BigInt(ts) > 0n;
}

function known(number) {
  return number !== null && number !== undefined && Number.isFinite(Number(number));
}
