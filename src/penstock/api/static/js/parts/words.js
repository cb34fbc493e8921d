// States and holders as text with a tone. Tones are good, warn, bad and idle.

import { el } from "../dom.js";
import { stated } from "../format.js";
import { routeTo, routeToJob } from "../router.js";

const TONES = {
  // changefeeds
  normal: "good",
  warning: "warn",
  failed: "bad",
  stopped: "idle",
  finished: "idle",
  // jobs
  running: "good",
  completed: "good",
  pending: "good",
  error: "bad",
  canceled: "idle",
  cancelled: "idle",
  paused: "idle",
  // parts
  starting: "warn",
  "starting Spark": "warn",
  waiting: "bad",
  degraded: "bad",
};

/** The tone of a state; an unknown state is neither good nor bad. */
export function toneOf(state) {
  return TONES[state] ?? "idle";
}

export function badge(text, tone = toneOf(text)) {
  return el("span", { class: "badge", "data-tone": tone }, text);
}

/** Whether a table is captured, or why it is not, in two words. */
export function capturedBadge({ captured, refusal }) {
  if (refusal) return badge("cannot be captured", "bad");
  return captured ? badge("captured", "good") : badge("not captured", "bad");
}

/** Since when and why a table cannot be captured. */
export function refusedText({ reason, since_time: since }) {
  return [since ? `Not captured since ${stated(since)}: ` : "Not captured: ", prose(reason)];
}

/** Whether something holds the object back. */
export function isHeld(heldBy) {
  return Boolean(heldBy) && heldBy.kind !== "none";
}

/** What holds an object back, with a link. An object that holds itself back is not named again. */
export function holder(heldBy, self = null) {
  const named = heldBy.name !== "none" && heldBy.name !== self;
  return [
    named ? ["Held back by ", heldBy.kind, " ", linked(heldBy), ": "] : "Held back: ",
    prose(heldBy.detail),
  ];
}

function linked({ kind, name }) {
  const route = {
    table: () => routeTo("tables", [name]),
    changefeed: () => routeTo("changefeeds", [name]),
    job: () => routeToJob(name),
  }[kind];
  return route ? el("a", { href: route() }, name) : el("span", { class: "mono" }, name);
}

/** A text of the API, with commands between backticks as code. */
export function prose(text) {
  return String(text)
    .split(/`([^`]+)`/)
    .map((part, place) => (place % 2 ? el("code", {}, part) : part));
}
