// The level of a spool, as text and as a bar with its marks.

import { spoolBar } from "../draw/bars.js";
import { el } from "../dom.js";
import { bytes } from "../format.js";

export function spool(level, name) {
  const share = `${Math.round(level.level * 100)} %`;
  const marks = `low mark ${Math.round(level.low * 100)} %, high mark ${Math.round(level.high * 100)} %`;
  const state = level.level > level.high ? "above the high mark: reading is stopped" : marks;
  return [
    el(
      "p",
      { class: "spool-words" },
      el("span", {}, name),
      el("span", { class: "number" }, `${bytes(level.bytes)} of ${bytes(level.quota_bytes)}`),
    ),
    spoolBar(level, `Spool of ${name}: ${share} full; ${marks}`),
    el("p", { class: "lead" }, `${share} full; ${state}`),
  ];
}
