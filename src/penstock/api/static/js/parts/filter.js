// A long list, of which a part is shown: what somebody looks for, and no more than anybody reads.

import { el } from "../dom.js";
import { count } from "../format.js";
import { field } from "./pieces.js";

const SHOWN = 200;
const FEW = 4; // so many are seen at a glance

/**
 * What to show of `things`, and above it a field to filter them by name, where there are many. A view with it
 * has `filterActions` among its actions.
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
  if (found === 0) return "None has that in its name.";
  if (shown < found) return `${count(shown)} of ${count(found)} are shown; filter for the others.`;
  return found < all ? `${count(found)} of ${count(all)} are shown.` : "";
}
