// The objects of a table on a time line, a lane for each kind, with the times of schema changes.

import { svg } from "../dom.js";
import { bytes, counted, moment, msOf } from "../format.js";

const TOP = 24;
const BOTTOM = 26;
const LABEL = 92;
const NARROW = 520;
const EDGE = 46; // half the width of the longest tick label
const TICKS_MS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5,
  72e5, 144e5, 216e5, 432e5, 864e5,
];
export const KINDS = ["appendable", "direct", "merged"];

/** The drawing between two times, `width` pixels wide; `schemas` and `objects` are those of the API. */
export function timeline({ schemas, objects }, fromMs, toMs, width) {
  const narrow = width < NARROW;
  const label = narrow ? 0 : LABEL;
  const lanes = { height: narrow ? 44 : 30, head: narrow ? 16 : 0 }; // on a phone the name of a lane is above it
  const span = Math.max(1, toMs - fromMs);
  const x = (ms) => label + ((Math.min(toMs, Math.max(fromMs, ms)) - fromMs) / span) * (width - label);
  const height = TOP + KINDS.length * lanes.height + BOTTOM;
  return svg(
    "svg",
    {
      class: "drawing",
      role: "img",
      "aria-label": describe(schemas, objects, fromMs, toMs),
      width,
      height,
      "data-key": "timeline",
    },
    KINDS.map((kind, place) => lane(kind, TOP + place * lanes.height, lanes, label, width)),
    ticks(fromMs, toMs, x, width - label, height),
    objects.map((object) => block(object, lanes, x)),
    schemas.map((version, place) => change(version, place + 1, fromMs, toMs, x, height)),
  );
}

function describe(schemas, objects, fromMs, toMs) {
  const kinds = KINDS.map((kind) =>
    counted(objects.filter((object) => object.kind === kind).length, `${kind} object`),
  );
  const there = [...kinds, counted(schemas.length, "schema version")].join(", ");
  return `From ${moment(fromMs)} to ${moment(toMs)}: ${there}. The table below has the numbers.`;
}

function lane(kind, y, { height, head }, label, width) {
  const ground = svg("rect", {
    class: "lane",
    x: label,
    y: y + head + 2,
    width: width - label,
    height: height - head - 4,
    rx: 4,
  });
  const textY = head > 0 ? y + head - 2 : y + height / 2 + 4;
  return [ground, svg("text", { class: "small", x: 0, y: textY }, kind)];
}

function ticks(fromMs, toMs, x, room, height) {
  const wanted = (toMs - fromMs) / Math.max(1, Math.floor(room / 110));
  const step = TICKS_MS.find((tick) => tick >= wanted) ?? Math.ceil(wanted / 864e5) * 864e5;
  const found = [];
  for (let ms = Math.ceil(fromMs / step) * step; ms <= toMs; ms += step) {
    const at = x(ms);
    if (found.length > 0 && at > x(toMs) - EDGE) break; // its label would overlap the one before it
    found.push(svg("line", { class: "axis", x1: at, x2: at, y1: TOP, y2: height - BOTTOM + 4 }));
    const anchor = anchorOf(at, x(fromMs), x(toMs), EDGE);
    found.push(
      svg("text", { class: "small", x: at, y: height - 7, "text-anchor": anchor }, tickText(ms, step)),
    );
  }
  return found;
}

function tickText(ms, step) {
  if (step >= 864e5) return moment(ms).slice(5, 10);
  if (step >= 6e4) return moment(ms).slice(11, 16);
  return moment(ms).slice(11, step >= 1e3 ? 19 : 23);
}

/** Data above, tombstones below, in the lane of their kind. */
function block(object, { height, head }, x) {
  const half = (height - head) / 2;
  const lane = Math.max(0, KINDS.indexOf(object.kind));
  const below = object.side === "tombstone";
  const left = x(msOf(object.from_ts) ?? 0);
  const right = x(msOf(object.to_ts) ?? 0);
  const words = `${object.kind} ${object.side}: ${counted(object.rows, "row")}, ${bytes(object.bytes)}`;
  return svg(
    "rect",
    {
      class: below ? "tombstone" : "data",
      x: left,
      y: TOP + lane * height + head + (below ? half + 1 : 4),
      width: Math.max(3, right - left),
      height: half - 5,
      rx: 2,
    },
    svg("title", {}, words),
  );
}

function change(version, number, fromMs, toMs, x, height) {
  const ms = msOf(version.since_ts);
  if (ms === null || ms < fromMs) return null;
  const at = x(ms);
  return [
    svg("line", { class: "moment", x1: at, x2: at, y1: 16, y2: height - BOTTOM + 4 }),
    svg(
      "text",
      { class: "small", x: at, y: 11, "text-anchor": anchorOf(at, x(fromMs), x(toMs), 12) },
      `v${number}`,
    ),
  ];
}

/** The anchor that keeps text at an edge inside the drawing. */
function anchorOf(at, left, right, room) {
  if (at > right - room) return "end";
  return at < left + room ? "start" : "middle";
}
