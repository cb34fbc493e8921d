// One changefeed: its progress and its settings.

import { pathOf } from "../api.js";
import { el } from "../dom.js";
import { duration, stated, timeOf } from "../format.js";
import { card, crumb, facts } from "../parts/pieces.js";
import { settings } from "../parts/settings.js";
import { badge, prose } from "../parts/words.js";
import { routeTo } from "../router.js";
import { change, feedButtons } from "./changefeeds.js";

export const changefeed = {
  name: "changefeed",
  title: ({ names }) => names[0],
  above: () => crumb(routeTo("changefeeds"), "Changefeeds"),
  everyMs: 2000,
  load: (api, { names }, signal) => api.get(`/changefeeds${pathOf(names[0])}`, {}, { signal }),
  draw(feed, screen) {
    return [
      screen.heading(feedButtons(feed, screen)),
      (feed.error || feed.warning) &&
        el("p", { class: "notice error", "data-key": "error" }, prose(feed.error || feed.warning)),
      card(
        "Progress",
        facts(
          ["State", badge(feed.state)],
          ["Lag", el("span", { class: "number" }, duration(feed.lag_s)), "behind the database"],
          ["Checkpoint", el("span", { class: "number" }, stated(feed.checkpoint_time)), feed.checkpoint_ts],
          ["Schema changes up to", el("span", { class: "number" }, timeOf(feed.ddl_ts)), feed.ddl_ts],
          [
            "Started at",
            timeOf(feed.start_ts),
            feed.snapshot ? "with a snapshot of every table" : "with the changes since then",
          ],
          feed.account && ["Account", feed.account],
        ),
      ),
      card("Settings", settings(feed.settings)),
    ].filter(Boolean);
  },
  actions: {
    pause: (screen, target) => change(screen, target, "pause"),
    resume: (screen, target) => change(screen, target, "resume"),
  },
};
