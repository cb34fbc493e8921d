// The lag of each stage, what the stage adds to it, and what holds it back.

import { bar } from "../draw/bars.js";
import { el } from "../dom.js";
import { duration } from "../format.js";
import { holder, isHeld } from "./words.js";

const NAMES = {
  commit: ["Commit", "Open transactions"],
  capture: ["Capture", "Until a change can be read"],
  store: ["Event store", "Until it is in an object"],
  changefeeds: ["Changefeeds", "Until it is on the remote"],
  jobs: ["Jobs", "Until a target has it"],
};

export function stages(all) {
  const slowest = Math.max(...all.map((stage) => stage.lag_s ?? 0), 0.001);
  return el(
    "ol",
    { class: "stages" },
    all.map((stage) => row(stage, slowest)),
  );
}

function row({ stage, lag_s: lag, held_by: heldBy }, slowest) {
  const [name, meaning] = NAMES[stage] ?? [stage, ""];
  const held = isHeld(heldBy);
  return el(
    "li",
    { class: "stage", "data-key": stage },
    el("h3", {}, name),
    bar((lag ?? 0) / slowest, held ? "warn" : "good"),
    el("span", { class: "number" }, duration(lag)),
    el("p", { class: "why", "data-tone": held ? "warn" : null }, held ? holder(heldBy) : meaning),
  );
}
