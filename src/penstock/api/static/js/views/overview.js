// The overview: the flow of changes, what holds it back, and what to do.

import { flow } from "../draw/flow.js";
import { el, svg } from "../dom.js";
import { count, counted, duration, stated, statedSecond } from "../format.js";
import { card } from "../parts/pieces.js";
import { problems } from "../parts/problems.js";
import { rows } from "../parts/rows.js";
import { spool } from "../parts/spool.js";
import { stages } from "../parts/stages.js";
import { badge } from "../parts/words.js";
import { routeTo } from "../router.js";

const SPOOLS = 5; // at most this many, the fullest

export const overview = {
  name: "overview",
  title: () => "Overview",
  everyMs: 2000,
  load: (api, _route, signal) => api.get("/overview", {}, { signal }),
  draw(data, screen) {
    return [
      screen.heading(el("p", { class: "number" }, `As of ${stated(data.now_time)}`)),
      headline(data),
      data.problems.length > 0 &&
        card("Problems", problems(data.problems), leftOff(data.problems, data.totals?.problems)),
      card("Flow", flow(data, screen.width - inset(screen))),
      el("div", { class: "pair", "data-key": "pair" }, stageCard(data), spoolCard(data)),
      card("Parts", engine(data), parts(data.parts)),
    ].filter(Boolean);
  },
};

/** The width of a card's border and padding, both sides together. */
function inset(screen) {
  return (screen.width < 676 ? 24 : 32) + 2;
}

function headline({ healthy, problems: found, stages: all, totals }) {
  const slowest = Math.max(...all.map((stage) => stage.lag_s ?? 0), 0);
  const many = totals?.problems ?? found.length;
  const summary = healthy && many === 0 ? "Everything runs" : counted(many, "problem");
  const tone = healthy ? "good" : "bad";
  return el(
    "div",
    { class: "headline", "data-tone": tone, "data-key": "headline" },
    sign(healthy),
    // Only a change of health is read aloud; the lag changes all the time.
    el(
      "div",
      {},
      el("p", { role: "status", "aria-live": "polite" }, summary),
      el(
        "p",
        {},
        "The slowest stage is ",
        el("span", { class: "number" }, duration(slowest)),
        " behind the database.",
      ),
    ),
  );
}

function sign(good) {
  const path = good ? "M9 16.5l5 5 9-11" : "M16 8v9m0 5.500v.5";
  return svg(
    "svg",
    {
      viewBox: "0 0 32 32",
      "aria-hidden": "true",
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 2.6,
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
    },
    svg("circle", { cx: 16, cy: 16, r: 13, "stroke-width": 2 }),
    svg("path", { d: path }),
  );
}

function stageCard({ stages: all }) {
  return card(
    "Lag by stage",
    el("p", { class: "lead" }, "Time since the commit, of the slowest table or target in each stage."),
    stages(all),
  );
}

function spoolCard({ changefeeds }) {
  const all = changefeeds
    .filter((feed) => feed.spool)
    .sort((one, other) => other.spool.level - one.spool.level);
  const held = all.slice(0, SPOOLS);
  const left = all.length - held.length;
  const inside =
    held.length > 0
      ? el(
          "ul",
          { class: "spools" },
          held.map((feed) => el("li", { "data-key": feed.id }, spool(feed.spool, feed.id))),
        )
      : el("p", { class: "muted" }, "No changefeed runs here.");
  return card(
    "Spools",
    el(
      "p",
      { class: "lead" },
      "Encoded bytes that are not on the remote yet. Above the high mark, reading stops until the low mark is reached.",
    ),
    inside,
    left > 0 &&
      el(
        "p",
        { class: "more" },
        el("a", { href: routeTo("changefeeds") }, `and ${count(left)} more`),
      ),
  );
}

/** Who works on rows by the settings, and who did since the processes started. */
function engine({ engine: chosen, engines }) {
  const named = chosen === "local" ? "the services themselves (engine: local)" : "Spark";
  return el(
    "p",
    { class: "lead", "data-key": "engine" },
    `Rows are worked on by ${named}.`,
    engines && ` So far: ${counted(engines.spark, "row")} on Spark, ${counted(engines.local, "row")} local.`,
  );
}

function parts(found) {
  if (found.length === 0)
    return el(
      "p",
      { class: "muted" },
      "No process of this deployment runs. ",
      el("code", {}, "penstock up"),
      " starts all of them.",
    );
  const columns = [
    { label: "Part", cell: (part) => part.name, kind: "name" },
    { label: "State", cell: (part) => badge(part.state) },
    { label: "Since", cell: (part) => el("span", { class: "number" }, statedSecond(part.since)) },
    { label: "Restarts", cell: (part) => el("span", { class: "number" }, part.restarts), kind: "right" },
    { label: "Address", cell: (part) => part.addr && el("span", { class: "mono" }, part.addr) },
    { label: "Last error", cell: (part) => part.error && el("span", { class: "error" }, part.error) },
  ];
  return rows("Parts of the deployment", columns, found, { key: (part) => part.name });
}

function leftOff(shown, total) {
  const left = (total ?? shown.length) - shown.length;
  return (
    left > 0 &&
    el("p", { class: "more muted" }, `and ${left} more: `, el("a", { href: routeTo("tables") }, "tables"))
  );
}
