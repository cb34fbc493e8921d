// Search in the indexes, with the freshness of the answer.

import { Refused, pathOf } from "../api.js";
import { el } from "../dom.js";
import { clock, counted, duration, stated } from "../format.js";
import { card, choice, field, notice } from "../parts/pieces.js";
import { cellOf } from "../parts/rows.js";
import { routeTo } from "../router.js";
import { failure } from "../screen.js";

const MARKS = new Set(["_score", "_distance", "_relevance_score"]);

export const search = {
  name: "search",
  title: () => "Search",
  everyMs: 2000,
  load: (api, _route, signal) => api.get("/overview", {}, { signal }),
  draw(data, screen) {
    const head = screen.heading(el("p", {}, counted(data.indexes.length, "index", "indexes")));
    if (data.indexes.length === 0) {
      return [
        head,
        notice(
          "There is no index yet. ",
          el("code", {}, "penstock job register"),
          " with the consumer fulltext or vector creates one.",
        ),
      ];
    }
    return [head, card("Query", queryForm(data.indexes, screen)), answerCard(screen.memory)].filter(
      Boolean,
    );
  },
  /** An address with words starts the search at once. */
  onOpen(screen) {
    const form = screen.content.querySelector("form");
    if (screen.route.query.q && form && !screen.memory.answer) ask(screen, form);
  },
  actions: { ask },
};

function queryForm(indexes, screen) {
  const { query } = screen.route;
  const chosen = query.index ?? indexes[0];
  const text = { type: "search", name: "q", autocomplete: "off", value: query.q ?? "", required: true };
  return el(
    "form",
    { "data-action": "ask", novalidate: true, role: "search" },
    el(
      "div",
      { class: "fields" },
      choice(
        "index",
        "Index",
        indexes.map((name) => [name, name]),
        chosen,
        { name: "index" },
      ),
      field("q", "Words", text, { kind: "wide", error: screen.memory.error }),
      choice(
        "k",
        "Results",
        [
          ["10", "10"],
          ["50", "50"],
          ["100", "100"],
        ],
        "10",
        { name: "k" },
        "narrow",
      ),
      el(
        "button",
        { class: "main", type: "submit", "aria-busy": screen.busy.has("ask") ? "true" : null },
        "Search",
      ),
    ),
    el("p", { class: "lead" }, "Search a vector index with numbers: [0.1, 0.2, 0.3]."),
  );
}

/** An answer shows the time of the search. It is not polled. */
function answerCard({ answer, problem, askedMs }) {
  if (problem) return el("p", { class: "notice error", role: "alert", "data-key": "problem" }, problem);
  if (!answer) return null;
  const [upTo, lag] = [stated(answer.watermark_time), duration(answer.lag_s)];
  const fresh = `Searched at ${clock(askedMs)}: the index had every change up to ${upTo}, ${lag} behind the database.`;
  const partly = answer.complete
    ? null
    : " The index is being rebuilt; these rows are from its last complete version.";
  return card(
    "Results",
    el(
      "p",
      { class: "lead", role: "status" },
      `${counted(answer.rows.length, "row")} of ${answer.job}. `,
      fresh,
      partly,
    ),
    answer.rows.length === 0
      ? el("p", { class: "muted" }, "No row was found.")
      : el("ol", { class: "hits" }, answer.rows.map(hit)),
  );
}

function hit(row) {
  const marks = Object.entries(row).filter(([name]) => MARKS.has(name));
  const cells = Object.entries(row).filter(([name]) => !MARKS.has(name));
  const lines = [
    ...cells.map(([name, value]) => [name, cellOf(value).shown]),
    ...marks.map(([name, value]) => [name.slice(1).replaceAll("_", " "), Number(value).toPrecision(4)]),
  ];
  return el(
    "li",
    { class: "hit" },
    el(
      "dl",
      {},
      lines.map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]),
    ),
  );
}

function ask(screen, form) {
  const { memory } = screen;
  const index = form.elements.index.value;
  const words = form.elements.q.value.trim();
  memory.error = words === "" ? "Enter words to search for." : null;
  if (memory.error) {
    screen.redraw();
    form.elements.q.focus();
    return undefined;
  }
  screen.go(routeTo("search", [], { index, q: words }), { quietly: true });
  return screen.during("ask", async () => {
    try {
      Object.assign(memory, {
        answer: await fetchAnswer(screen.api, index, words, form.elements.k.value),
        problem: null,
      });
      memory.askedMs = Date.now();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      Object.assign(memory, { answer: null, problem: failure(error) });
    }
  });
}

function fetchAnswer(api, index, words, k) {
  const cut = index.indexOf("/");
  const path = `/search${pathOf(index.slice(0, cut), index.slice(cut + 1))}`;
  const vector = vectorOf(words);
  if (vector !== null) return api.post(path, { body: { vector, k: Number(k) }, patienceMs: 60_000 });
  return api.get(path, { q: words, k }, { patienceMs: 60_000 });
}

function vectorOf(words) {
  if (!words.startsWith("[")) return null;
  try {
    const numbers = JSON.parse(words);
    return Array.isArray(numbers) && numbers.every(Number.isFinite) ? numbers : null;
  } catch {
    return null; // words that start with a bracket
  }
}
