// All tables: how far each can be read.

import { el } from "../dom.js";
import { count, counted, duration, stated, timeOf } from "../format.js";
import { field, notice } from "../parts/pieces.js";
import { rows } from "../parts/rows.js";
import { badge, holder, isHeld } from "../parts/words.js";
import { routeTo } from "../router.js";

const SHOWN = 200; // more than anybody reads; the filter finds the others

export const tables = {
  name: "tables",
  title: () => "Tables",
  everyMs: 2000,
  async load(api, _route, signal) {
    const [list, overview] = await Promise.all([
      api.get("/tables", {}, { signal }),
      api.get("/overview", {}, { signal }),
    ]);
    const held = new Map(overview.tables.map((table) => [table.table, table.held_by]));
    return list.map((table) => ({ ...table, held_by: held.get(table.table) }));
  },
  draw(data, screen) {
    const head = screen.heading(el("p", {}, counted(data.length, "table")));
    if (data.length === 0) return [head, notice("There is no table yet.")];
    const wanted = (screen.memory.filter ?? "").toLowerCase();
    const found = data.filter(({ table }) => table.toLowerCase().includes(wanted));
    const shown = found.slice(0, SHOWN);
    const more = { type: "search", "data-action": "filter", "data-on": "input", autocomplete: "off" };
    const filter = field(
      "filter",
      "Filter by name",
      { ...more, value: screen.memory.filter ?? "" },
      { kind: "filter" },
    );
    return [
      head,
      el(
        "section",
        { class: "card", "aria-label": "Tables" },
        el(
          "div",
          { class: "fields" },
          filter,
          el(
            "p",
            { class: "muted", role: "status" },
            (wanted || shown.length < found.length) && summary(found.length, shown.length),
          ),
        ),
        shown.length > 0 && rows("Tables", COLUMNS, shown, { key: ({ table }) => table, below }),
      ),
    ];
  },
  actions: {
    filter(screen, input) {
      screen.memory.filter = input.value;
      screen.redraw();
    },
  },
};

const COLUMNS = [
  { label: "Table", kind: "name", cell: ({ table }) => el("a", { href: routeTo("tables", [table]) }, table) },
  {
    label: "State",
    cell: ({ captured }) => (captured ? badge("captured", "good") : badge("not captured", "bad")),
  },
  { label: "Lag", kind: "right", cell: ({ lag_s: lag }) => el("span", { class: "number" }, duration(lag)) },
  { label: "Readable up to", cell: (table) => el("span", { class: "number" }, stated(table.readable_time)) },
  { label: "Last change by", cell: ({ changed_ts: ts }) => el("span", { class: "number" }, timeOf(ts)) },
];

function summary(found, shown) {
  if (found === 0) return "No table has that in its name.";
  return shown < found
    ? `${count(shown)} of ${count(found)} are shown; filter for the others.`
    : `${counted(found, "table")} shown`;
}

function below({ held_by: heldBy }) {
  return isHeld(heldBy) ? el("p", { class: "muted" }, holder(heldBy)) : null;
}
