// Bars: a lag beside others, and a spool against its marks.

import { svg } from "../dom.js";

const HEIGHT = 10;

/** A bar that fills a share of its width. */
export function bar(share, tone = "good") {
  const width = `${(clamp(share) * 100).toFixed(1)}%`;
  return svg(
    "svg",
    { class: "drawing bar", width: "100%", height: HEIGHT, "aria-hidden": "true" },
    svg("rect", { class: "track", x: 0, y: 0, width: "100%", height: HEIGHT, rx: 4 }),
    share > 0 && svg("rect", { class: "fill", x: 0, y: 0, width, height: HEIGHT, rx: 4, "data-tone": tone }),
  );
}

/** The level of a spool, with the marks at which reading stops and continues. */
export function spoolBar({ level, high, low }, label) {
  const at = (share) => `${(clamp(share) * 100).toFixed(1)}%`;
  const tone = level > high ? "bad" : level > low ? "warn" : "good";
  return svg(
    "svg",
    { class: "drawing spool", width: "100%", height: 22, role: "img", "aria-label": label },
    svg("rect", { class: "track", x: 0, y: 5, width: "100%", height: 12, rx: 4 }),
    level > 0 &&
      svg("rect", { class: "fill", x: 0, y: 5, width: at(level), height: 12, rx: 4, "data-tone": tone }),
    [low, high].map((share) => svg("line", { class: "mark", x1: at(share), x2: at(share), y1: 0, y2: 22 })),
  );
}

function clamp(share) {
  return Math.min(1, Math.max(0, Number(share) || 0));
}
