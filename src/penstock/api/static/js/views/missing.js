// The view for an address without a view.

import { el } from "../dom.js";
import { notice } from "../parts/pieces.js";
import { routeTo } from "../router.js";

export const missing = {
  name: "missing",
  title: () => "Not found",
  everyMs: 60_000,
  load: () => Promise.resolve({}),
  draw: (_data, screen) => [
    screen.heading(),
    notice("There is no such page. ", el("a", { href: routeTo("overview") }, "Overview")),
  ],
};
