// Tables: rows on a wide screen, cards on a narrow one. Roles are explicit, because CSS that turns rows into cards
// removes the table semantics.

import { el } from "../dom.js";

/**
 * `columns` are {label, cell(row), kind}; kind is a class: `name`, `right`, `actions`. `below(row)` may return an
 * element to show under the row in full width.
 */
export function rows(caption, columns, things, { key, below = () => null }) {
  const heads = columns.map(({ label, kind }) =>
    el(
      "th",
      { role: "columnheader", scope: "col", class: kind === "right" ? "right" : null },
      kind === "actions" ? el("span", { class: "unseen" }, label) : label,
    ),
  );
  const body = things.flatMap((thing) => {
    const more = below(thing);
    const cells = columns.map(({ label, cell, kind }) =>
      el("td", { role: "cell", "data-label": label, class: kind ?? null }, cell(thing)),
    );
    const row = el("tr", { role: "row", "data-key": key(thing), class: more ? "joined" : null }, cells);
    if (!more) return [row];
    const whole = el("td", { role: "cell", class: "full", colspan: columns.length }, more);
    return [row, el("tr", { role: "row", "data-key": `${key(thing)} below` }, whole)];
  });
  return el(
    "table",
    { class: "rows", role: "table", "data-key": caption },
    el("caption", { class: "unseen" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads)),
    el("tbody", { role: "rowgroup" }, body),
  );
}

/** A table with any columns, which scrolls sideways inside its card. */
export function grid(caption, names, cells) {
  const heads = names.map((name) => el("th", { scope: "col" }, name));
  const body = cells.map((row) =>
    el(
      "tr",
      {},
      row.map((cell) => el("td", cell.attributes ?? {}, cell.shown)),
    ),
  );
  return el(
    "div",
    {
      class: "scroll",
      role: "region",
      "aria-label": caption,
      tabindex: "0",
      "data-key": `scroll ${caption}`,
    },
    el(
      "table",
      { class: "grid" },
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, heads)),
      el("tbody", {}, body),
    ),
  );
}

/** Any value as the text of a cell. */
export function cellOf(value) {
  if (value === null || value === undefined) return { shown: "null", attributes: { class: "none" } };
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return { shown: text, attributes: text.length > 32 ? { title: text } : {} };
}
