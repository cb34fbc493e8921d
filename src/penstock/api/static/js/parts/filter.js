// Filters a long list by name, and limits the rows that are shown.

import { el } from "../dom.js";
import { count } from "../format.js";
import { field } from "./pieces.js";

const SHOWN = 200;
const FEW = 4; // a list this short needs no filter

/**
 * Return the `things` to show, and a filter field when there are many. A view that uses it needs `filterActions`
 * among its actions.
 */
export function filtered(things, nameOf, screen) {
  const text = screen.memory.filter ?? "";
  const wanted = text.toLowerCase();
  const found = things.filter((thing) => nameOf(thing).toLowerCase().includes(wanted));
  const shown = found.slice(0, SHOWN);
  const more = {
    type: "search",
    "data-action": "filter",
    "data-on": "input",
    autocomplete: "off",
    value: text,
  };
  const bar =
    things.length > FEW &&
    el(
      "div",
      { class: "fields", "data-key": "filter" },
      field("filter", "Filter by name", more, { kind: "filter" }),
      el("p", { class: "muted", role: "status" }, summary(things.length, found.length, shown.length)),
    );
  return { shown, bar };
}

export const filterActions = {
  filter(screen, input) {
    screen.memory.filter = input.value;
    screen.redraw();
  },
};

function summary(all, found, shown) {
  if (found === 0) return "No name contains this text.";
  if (shown < found) return `${count(shown)} of ${count(found)} are shown; filter for the others.`;
  return found < all ? `${count(found)} of ${count(all)} are shown.` : "";
}
