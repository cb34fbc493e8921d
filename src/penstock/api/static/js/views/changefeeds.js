// All changefeeds, with their state, lag and actions.

import { el } from "../dom.js";
import { counted, duration, stated } from "../format.js";
import { filterActions, filtered } from "../parts/filter.js";
import { button, notice } from "../parts/pieces.js";
import { rows } from "../parts/rows.js";
import { spoolBar } from "../draw/bars.js";
import { badge, holder, isHeld, prose } from "../parts/words.js";
import { pathOf } from "../api.js";
import { routeTo } from "../router.js";

export const changefeeds = {
  name: "changefeeds",
  title: () => "Changefeeds",
  everyMs: 2000,
  /** The list has every changefeed; the overview adds what holds the slowest ones back. */
  async load(api, _route, signal) {
    const [list, overview] = await Promise.all([
      api.get("/changefeeds", {}, { signal }),
      api.get("/overview", {}, { signal }),
    ]);
    const more = new Map(overview.changefeeds.map((feed) => [feed.id, feed]));
    return list.map((feed) => ({ ...more.get(feed.id), ...feed }));
  },
  draw(data, screen) {
    const head = screen.heading(el("p", {}, counted(data.length, "changefeed")));
    if (data.length === 0) {
      return [
        head,
        notice("There is no changefeed yet. ", el("code", {}, "penstock changefeed create"), " creates one."),
      ];
    }
    const columns = [
      {
        label: "Changefeed",
        kind: "name",
        cell: (feed) => el("a", { href: routeTo("changefeeds", [feed.id]) }, feed.id),
      },
      { label: "State", cell: (feed) => badge(feed.state) },
      { label: "Lag", kind: "right", cell: (feed) => el("span", { class: "number" }, duration(feed.lag_s)) },
      { label: "Checkpoint", cell: checkpoint },
      {
        label: "Spool",
        cell: (feed) =>
          feed.spool &&
          spoolBar(feed.spool, `Spool of ${feed.id}: ${Math.round(feed.spool.level * 100)} % full`),
      },
      { label: "Actions", kind: "actions", cell: (feed) => feedButtons(feed, screen) },
    ];
    const { shown, bar } = filtered(data, (feed) => feed.id, screen);
    return [
      head,
      el(
        "section",
        { class: "card", "aria-label": "Changefeeds" },
        bar,
        shown.length > 0 && rows("Changefeeds", columns, shown, { key: (feed) => feed.id, below: trouble }),
      ),
    ];
  },
  actions: {
    ...filterActions,
    pause: (screen, target) => change(screen, target, "pause"),
    resume: (screen, target) => change(screen, target, "resume"),
  },
};

function checkpoint(feed) {
  return [
    el("span", { class: "number" }, stated(feed.checkpoint_time)),
    el("span", { class: "sub mono" }, feed.checkpoint_ts),
  ];
}

function trouble(feed) {
  if (feed.error) return el("p", { class: "error" }, prose(feed.error));
  if (feed.warning) return el("p", { class: "error" }, prose(feed.warning));
  return isHeld(feed.held_by) ? el("p", { class: "muted" }, holder(feed.held_by, feed.id)) : null;
}

/** A running changefeed can be paused, another resumed; a finished one has no button. */
export function feedButtons(feed, screen) {
  if (feed.state === "finished") return null;
  const action = feed.state === "normal" || feed.state === "warning" ? "pause" : "resume";
  const label = action === "pause" ? "Pause" : "Resume";
  return el(
    "div",
    { class: "buttons" },
    button(label, action, { name: feed.id, about: feed.id, busy: screen.busy.has(feed.id) }),
  );
}

export function change(screen, target, action) {
  const { name } = target.dataset;
  return screen.during(name, async () => {
    await screen.api.post(`/changefeeds${pathOf(name, action)}`);
    screen.shell.say(action === "pause" ? `Changefeed ${name} is paused.` : `Changefeed ${name} is resumed.`);
    await screen.refresh();
  });
}
