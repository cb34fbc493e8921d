// All tables, with the time up to which each can be read.

import { el } from "../dom.js";
import { counted, duration, stated, timeOf } from "../format.js";
import { filterActions, filtered } from "../parts/filter.js";
import { notice } from "../parts/pieces.js";
import { rows } from "../parts/rows.js";
import { capturedBadge, holder, isHeld, refusedText } from "../parts/words.js";
import { routeTo } from "../router.js";

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
    const { shown, bar } = filtered(data, ({ table }) => table, screen);
    return [
      head,
      el(
        "section",
        { class: "card", "aria-label": "Tables" },
        bar,
        shown.length > 0 && rows("Tables", COLUMNS, shown, { key: ({ table }) => table, below }),
      ),
    ];
  },
  actions: filterActions,
};

const COLUMNS = [
  { label: "Table", kind: "name", cell: ({ table }) => el("a", { href: routeTo("tables", [table]) }, table) },
  {
    label: "State",
    cell: capturedBadge,
  },
  { label: "Lag", kind: "right", cell: ({ lag_s: lag }) => el("span", { class: "number" }, duration(lag)) },
  { label: "Readable up to", cell: (table) => el("span", { class: "number" }, stated(table.readable_time)) },
  { label: "Last change by", cell: ({ changed_ts: ts }) => el("span", { class: "number" }, timeOf(ts)) },
];

function below({ held_by: heldBy, refusal }) {
  if (refusal) return el("p", { class: "error" }, refusedText(refusal));
  return isHeld(heldBy) ? el("p", { class: "muted" }, holder(heldBy)) : null;
}
