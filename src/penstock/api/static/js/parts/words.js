// States, and what holds something back, in words and tones. Tones are good, warn, bad and idle.

import { el } from "../dom.js";
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
  waiting: "bad",
};

/** The tone of a state; one that is not known is neither good nor bad. */
export function toneOf(state) {
  return TONES[state] ?? "idle";
}

export function badge(text, tone = toneOf(text)) {
  return el("span", { class: "badge", "data-tone": tone }, text);
}

/** Whether something holds it back. */
export function isHeld(heldBy) {
  return Boolean(heldBy) && heldBy.kind !== "none";
}

/** What holds something back, with a way there; what holds itself back is not named once more. */
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

/** Text of ours, in which commands stand between backticks. */
export function prose(text) {
  return String(text)
    .split(/`([^`]+)`/)
    .map((part, place) => (place % 2 ? el("code", {}, part) : part));
}
