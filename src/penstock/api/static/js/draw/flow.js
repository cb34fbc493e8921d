// The flow of changes, drawn: database, capture, event store, changefeeds and jobs, targets.

import { svg } from "../dom.js";
import { count, counted, duration, rate, shortly } from "../format.js";
import { isHeld, toneOf } from "../parts/words.js";
import { fitted, widthOf } from "./fitting.js";
import { layout } from "./flowlayout.js";

const TITLES = {
  commit: "Database",
  capture: "Capture",
  store: "Event store",
  changefeeds: "Changefeeds",
  jobs: "Jobs",
};

/** The drawing of an overview, `width` pixels wide. The page has the same as text below it. */
export function flow(overview, width) {
  const { changefeeds, jobs } = overview;
  const totals = totalsOf(overview);
  const plan = layout(width - 2, changefeeds.length, jobs.length);
  const stages = Object.fromEntries(overview.stages.map((stage) => [stage.stage, stage]));
  return svg(
    "svg",
    {
      class: "drawing",
      role: "img",
      "aria-label": describe(overview, stages, totals),
      width,
      height: plan.height + 2,
      viewBox: `-1 -1 ${width} ${plan.height + 2}`,
      "data-key": "flow",
    },
    plan.pipes.map((pipe) => drawnPipe(pipe, stages[pipe.stage])),
    Object.entries(plan.nodes).map(([name, box]) => drawnNode(name, box, stages[name], overview, totals)),
    drawnPills(plan.pills.changefeeds, changefeeds.map(feedPill), totals.changefeeds),
    drawnPills(plan.pills.jobs, jobs.map(jobPill), totals.jobs),
  );
}

function totalsOf({ totals, tables, changefeeds, jobs }) {
  return { tables: tables.length, changefeeds: changefeeds.length, jobs: jobs.length, ...totals };
}

function describe(overview, stages, totals) {
  const lags = Object.entries(TITLES).map(
    ([name, title]) => `${title}: ${duration(stages[name]?.lag_s)} behind, ${rate(stages[name]?.rate)}`,
  );
  const targets = `${counted(totals.changefeeds, "changefeed")} and ${counted(totals.jobs, "job")}`;
  return `Changes flow from the database through capture and event store to ${targets}. ${lags.join("; ")}.`;
}

function drawnPipe({ path, labelX, labelY, anchor, thin }, stage) {
  const flows = Number(stage?.rate) > 0;
  const label =
    thin || !Number.isFinite(stage?.rate)
      ? null
      : svg("text", { class: "small", x: labelX, y: labelY, "text-anchor": anchor }, rate(stage.rate));
  return [svg("path", { class: "pipe", d: path }), flows && svg("path", { class: "water", d: path }), label];
}

function drawnNode(name, box, stage, overview, totals) {
  const tone = nodeTone(name, stage, overview, totals);
  const middle = box.x + box.width / 2;
  const idle = tone === "idle";
  const roomy = box.height > 70;
  const [title, value, sub] = roomy ? [22, 47, 68] : [25, 48, 48];
  const text = (kind, y, words, more = {}) =>
    svg(
      "text",
      { class: kind, x: middle, y: box.y + y, "text-anchor": "middle", "data-tone": tone, ...more },
      words,
    );
  const lag = idle ? "none" : lagText(name, stage);
  const inside = roomy
    ? [
        text("title", title, TITLES[name]),
        text("value", value, lag),
        text("small", sub, subText(name, overview, totals)),
      ]
    : [
        text("title", title, TITLES[name], { x: box.x + 14, "text-anchor": "start" }),
        text("small", sub, subText(name, overview, totals), { x: box.x + 14, "text-anchor": "start" }),
        text("value", 39, lag, { x: box.x + box.width - 14, "text-anchor": "end" }),
      ];
  return [svg("rect", { class: "node", rx: 9, ...box, "data-tone": tone }), inside];
}

function lagText(name, stage) {
  if (name === "commit" && !stage?.lag_s) return "live";
  return duration(stage?.lag_s);
}

function subText(name, { parts }, totals) {
  const captures = parts.filter((part) => part.kind === "capture").length;
  return {
    commit: "commits",
    capture: counted(captures, "capture"),
    store: counted(totals.tables, "table"),
    changefeeds: counted(totals.changefeeds, "changefeed"),
    jobs: counted(totals.jobs, "job"),
  }[name];
}

function nodeTone(name, stage, overview, totals) {
  if ((name === "changefeeds" || name === "jobs") && totals[name] === 0) return "idle";
  const kind = { commit: "store", capture: "capture", changefeeds: "changefeeds", jobs: "jobs" }[name];
  const down = overview.parts.some((part) => part.kind === kind && part.state !== "running");
  const failed = { changefeeds: overview.changefeeds, jobs: overview.jobs }[name]?.some(
    ({ state }) => toneOf(state) === "bad",
  );
  if (down || failed) return "bad";
  return isHeld(stage?.held_by) ? "warn" : "good";
}

function feedPill({ id, state, lag_s }) {
  return { name: id, tone: toneOf(state), lag: lag_s };
}

function jobPill({ job, state, lag_s }) {
  return { name: job, tone: toneOf(state), lag: lag_s };
}

function drawnPills(boxes, things, total) {
  return boxes.map((box, place) => {
    const thing = things[place];
    const last = place === boxes.length - 1 && total > boxes.length;
    const middle = box.y + box.height / 2 + 4;
    const ground = svg("rect", { class: "node", rx: 13, ...box });
    if (last) {
      const left = total - boxes.length + 1;
      return [
        ground,
        svg(
          "text",
          { class: "small", x: box.x + box.width / 2, y: middle, "text-anchor": "middle" },
          `and ${count(left)} more`,
        ),
      ];
    }
    const lag = shortly(thing.lag);
    const room = box.width - 44 - widthOf(lag);
    return [
      ground,
      svg("circle", {
        class: "dot",
        cx: box.x + 14,
        cy: box.y + box.height / 2,
        r: 4,
        "data-tone": thing.tone,
      }),
      svg("text", { x: box.x + 24, y: middle }, svg("title", {}, thing.name), fitted(thing.name, room)),
      svg("text", { class: "small", x: box.x + box.width - 11, y: middle, "text-anchor": "end" }, lag),
    ];
  });
}
