// The changes of a table between two timestamps, page by page. The changes of a range never change, so they are
// loaded on demand and not polled.

import { Refused, pathOf } from "../api.js";
import { el } from "../dom.js";
import { count, moment, msOf, parsedTs, timeOf } from "../format.js";
import { failure } from "../screen.js";
import { routeTo } from "../router.js";
import { button, choice, field } from "./pieces.js";
import { cellOf, grid } from "./rows.js";
import { badge } from "./words.js";

const TONES = { insert: "good", update: "warn", delete: "bad" };
const SPANS = [
  ["Last minute", 60_000],
  ["Last 10 minutes", 600_000],
  ["Last hour", 3_600_000],
];

/** The form and, below it, a page of changes. */
export function browser(table, screen) {
  const { memory, route } = screen;
  memory.browse ??= { errors: {} };
  const { errors } = memory.browse;
  const text = { type: "text", autocomplete: "off", spellcheck: "false" };
  const shown = (ts) => (ts && msOf(ts) !== null ? ts : "");
  const form = el(
    "form",
    { "data-action": "browse", novalidate: true },
    el(
      "div",
      { class: "fields" },
      field(
        "from",
        "After",
        { ...text, name: "from", value: shown(route.query.from), placeholder: "an hour before the end" },
        { error: errors.from },
      ),
      field(
        "to",
        "Up to",
        { ...text, name: "to", value: shown(route.query.to), placeholder: "the newest readable change" },
        { error: errors.to },
      ),
      choice(
        "limit",
        "Rows",
        [
          ["50", "50"],
          ["200", "200"],
          ["1000", "1,000"],
        ],
        "50",
        { name: "limit" },
        "narrow",
      ),
      el(
        "button",
        { class: "main", type: "submit", "aria-busy": screen.busy.has("browse") ? "true" : null },
        "Show changes",
      ),
    ),
    el("p", { class: "lead" }, "A timestamp, or a time in UTC as 2026-11-16 09:40:00 or 09:40."),
    el(
      "div",
      { class: "buttons", role: "group", "aria-label": "Ranges" },
      SPANS.map(([label, ms]) =>
        button(label, "span", { name: String(ms), kind: "chip", disabled: !table.readable_ts }),
      ),
      button("Entire history", "span", { name: "all", kind: "chip", disabled: !table.readable_ts }),
    ),
  );
  return [form, el("div", { "data-key": "page" }, page(memory.browse, screen))];
}

function page({ answer, problem, pages }, screen) {
  if (problem) return el("p", { class: "notice error" }, problem);
  if (!answer) return null;
  const range = `after ${timeOf(answer.asked_from)} up to ${timeOf(answer.to_ts)}`;
  if (answer.rows.length === 0) return el("p", { class: "more muted" }, `No change ${range}.`);
  const names = [...new Set(answer.rows.flatMap(Object.keys))].filter(
    (name) => name !== "_op" && name !== "_commit_ts",
  );
  const cells = answer.rows.map((row) => [
    { shown: badge(row._op, TONES[row._op]) },
    { shown: timeOf(row._commit_ts), attributes: { title: String(row._commit_ts) } },
    ...names.map((name) => cellOf(row[name])),
  ]);
  const busy = screen.busy.has("browse");
  return [
    el(
      "p",
      { class: "more muted", role: "status" },
      `${count(answer.rows.length)} changes ${range}, page ${pages.length}${answer.more ? "" : ", the last"}.`,
    ),
    grid("List of changes", ["Change", "Committed", ...names], cells),
    el(
      "div",
      { class: "more" },
      button("Previous", "previous", { busy, disabled: pages.length < 2 }),
      button("Next", "next", { busy, disabled: !answer.more }),
    ),
  ];
}

/** With a range in the address, load its changes at once. */
export function onOpen(screen) {
  const { query } = screen.route;
  const form = screen.content.querySelector('form[data-action="browse"]');
  if ((query.from || query.to) && form && !screen.memory.browse.answer) browse(screen, form);
}

export function browserActions() {
  return {
    span(screen, { dataset: { name } }) {
      const { readable_ts: end, oldest_ts: oldest } = screen.data;
      const wanted = name === "all" ? 1 : msOf(end) - Number(name); // 0 would mean all rows of the table
      const input = document.getElementById("from");
      // A time means the first timestamp of its millisecond, at which the history may be gone already.
      input.value = wanted > (msOf(oldest) ?? 0) ? moment(wanted) : oldest;
      document.getElementById("to").value = "";
      return browse(screen, input.form);
    },
    browse,
    next(screen) {
      const { answer, pages } = screen.memory.browse;
      return turn(screen, [...pages, { from_ts: answer.next_from_ts, skip: answer.next_skip }]);
    },
    previous(screen) {
      return turn(screen, screen.memory.browse.pages.slice(0, -1));
    },
  };
}

function browse(screen, form) {
  const { memory, data } = screen;
  const nearMs = msOf(data.readable_ts) ?? Date.now();
  const errors = {};
  const read = (name) => {
    const given = form.elements[name].value.trim();
    const ts = given === "" ? null : parsedTs(given, nearMs);
    if (given !== "" && ts === null) errors[name] = "This is neither a timestamp nor a time.";
    return ts;
  };
  const [from, to] = [read("from"), read("to")];
  if (Object.keys(errors).length === 0 && from && to && BigInt(from) > BigInt(to))
    errors.to = "This is before the start.";
  const limit = form.elements.limit.value;
  memory.browse = { errors, limit, to_ts: to };
  if (Object.keys(errors).length > 0) {
    screen.redraw();
    form.elements[Object.keys(errors)[0]].focus();
    return undefined;
  }
  // The address contains the range, so that it can be shared.
  screen.go(routeTo("tables", screen.route.names, { from, to }), { quietly: true });
  return turn(screen, [{ from_ts: from, skip: null }]);
}

function turn(screen, pages) {
  const { memory, route } = screen;
  const { limit, to_ts: to } = memory.browse;
  const { from_ts: from, skip } = pages.at(-1);
  return screen.during("browse", async () => {
    try {
      const query = { from_ts: from, to_ts: to, skip, limit };
      const answer = await screen.api.get(`/tables${pathOf(route.names[0])}/changes`, query, {
        patienceMs: 120_000,
      });
      // Keep the resolved range, so that all pages are of the same range.
      const asked =
        memory.browse.answer && pages.length > 1 ? memory.browse.answer.asked_from : answer.from_ts;
      Object.assign(memory.browse, {
        answer: { ...answer, asked_from: asked },
        pages,
        to_ts: answer.to_ts,
        problem: null,
      });
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      memory.browse.problem = failure(error);
    }
  });
}
