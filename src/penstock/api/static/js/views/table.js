// A table's history: its schema versions, its objects on a time line, and its changes between two timestamps.

import { pathOf } from "../api.js";
import { el } from "../dom.js";
import { UNKNOWN, bytes, count, counted, duration, msOf, stated, timeOf } from "../format.js";
import { timeline } from "../draw/timeline.js";
import { onOpen, browser, browserActions } from "../parts/browser.js";
import { card, crumb, facts } from "../parts/pieces.js";
import { rows } from "../parts/rows.js";
import { capturedBadge, refusedText } from "../parts/words.js";
import { routeTo } from "../router.js";

export const table = {
  name: "table",
  title: ({ names }) => names[0],
  above: () => crumb(routeTo("tables"), "Tables"),
  everyMs: 5000, // history changes slowly, and is read from storage
  load: (api, { names }, signal) => api.get(`/tables${pathOf(names[0])}`, {}, { signal }),
  draw(found, screen) {
    return [
      screen.heading(capturedBadge(found)),
      found.refusal &&
        el("p", { class: "notice error", "data-key": "refusal" }, refusedText(found.refusal)),
      card(
        "Now",
        facts(
          ["Lag", el("span", { class: "number" }, duration(found.lag_s)), "behind the database"],
          ["Readable up to", el("span", { class: "number" }, stated(found.readable_time)), found.readable_ts],
          ["No change after", el("span", { class: "number" }, timeOf(found.changed_ts)), found.changed_ts],
          history(found),
        ),
      ),
      card("Objects", objects(found, screen.width - (screen.width < 676 ? 26 : 34))),
      card("Changes", browser(found, screen)),
      card("Schema", schemas(found.schemas)),
    ].filter(Boolean);
  },
  onOpen,
  actions: browserActions(),
};

function history({ oldest_ts: oldest, captured }) {
  if (!captured) return ["History from", UNKNOWN];
  return msOf(oldest) === null
    ? ["History from", "the start of the table"]
    : ["History from", timeOf(oldest), "older changes are gone"];
}

function objects(found, width) {
  const spans = found.objects;
  if (spans.length === 0)
    return el("p", { class: "muted" }, "None yet: its changes are still in the log of a capture.");
  const times = spans.flatMap((span) => [msOf(span.from_ts), msOf(span.to_ts)]).filter((ms) => ms !== null);
  const changes = found.schemas
    .map((schema) => msOf(schema.since_ts))
    .filter((ms) => ms !== null && ms > Math.min(...times));
  const fromMs = Math.min(...times);
  const toMs = Math.max(...times, ...changes, fromMs + 1000);
  const left = found.objects_left_off ?? 0;
  return [
    timeline(found, fromMs, toMs, width),
    el(
      "p",
      { class: "legend" },
      swatch("data", "data: rows that were written"),
      swatch("tombstone", "tombstones: rows that were replaced or deleted"),
      swatch("moment", "a new schema version"),
      left > 0 && el("span", {}, `the newest ${count(spans.length)}; ${count(left)} older ones are not shown`),
    ),
    kinds(found),
  ];
}

function swatch(kind, text) {
  return el("span", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text);
}

function kinds({ kinds: groups }) {
  const columns = [
    { label: "Kind", kind: "name", cell: (group) => `${group.kind} ${group.side}` },
    {
      label: "Objects",
      kind: "right",
      cell: (group) => el("span", { class: "number" }, count(group.objects)),
    },
    { label: "Rows", kind: "right", cell: (group) => el("span", { class: "number" }, count(group.rows)) },
    { label: "Size", kind: "right", cell: (group) => el("span", { class: "number" }, bytes(group.bytes)) },
    {
      label: "Committed",
      cell: (group) =>
        el(
          "span",
          { class: "number" },
          `${timeOf(group.from_ts).slice(0, 19)} – ${timeOf(group.to_ts).slice(0, 19)}`,
        ),
    },
  ];
  return rows("Objects by kind", columns, groups ?? [], { key: (group) => `${group.kind} ${group.side}` });
}

function schemas(versions) {
  // A version of the event store is as long as a timestamp, so the page numbers them from 1.
  const newest = versions.map((version, place) => ({ ...version, number: place + 1 })).reverse();
  return newest.map((version, place) =>
    el(
      "details",
      { "data-key": `since ${version.since_ts}`, open: place === 0 },
      el(
        "summary",
        {},
        el("strong", {}, `Version ${version.number}`),
        ` since ${stated(version.since_time)}, ${counted(version.columns.length, "column")}`,
        changed(version, newest[place + 1]),
      ),
      columns(version),
    ),
  );
}

function columns(version) {
  const cells = [
    { label: "Column", kind: "name", cell: (column) => column.name },
    { label: "Type", cell: (column) => el("span", { class: "mono" }, column.type) },
    { label: "Null", cell: (column) => (column.nullable ? "yes" : "no") },
    { label: "Key", cell: (column) => (column.primary_key ? "primary key" : "") },
  ];
  return rows(`Columns of version ${version.number}`, cells, version.columns, {
    key: (column) => column.name,
  });
}

/** The columns that a version added, removed or changed. */
function changed(version, before) {
  if (before === undefined) return "";
  const old = new Map(before.columns.map((column) => [column.name, column.type]));
  const now = new Map(version.columns.map((column) => [column.name, column.type]));
  const added = [...now.keys()].filter((name) => !old.has(name)).map((name) => `+ ${name}`);
  const gone = [...old.keys()].filter((name) => !now.has(name)).map((name) => `− ${name}`);
  const other = [...now.keys()]
    .filter((name) => old.has(name) && old.get(name) !== now.get(name))
    .map((name) => `~ ${name}`);
  const all = [...added, ...gone, ...other];
  return all.length > 0 ? ` (${all.join(", ")})` : "";
}
