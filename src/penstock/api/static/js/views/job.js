// One job: the freshness of its target, its last iteration and its spec.

import { jobPath } from "../api.js";
import { el } from "../dom.js";
import { count, duration, stated, timeOf } from "../format.js";
import { card, crumb, facts } from "../parts/pieces.js";
import { settings } from "../parts/settings.js";
import { badge, prose } from "../parts/words.js";
import { routeTo } from "../router.js";
import { jobActions, jobButtons, verdictOf } from "./jobs.js";

export const job = {
  name: "job",
  title: ({ names }) => names.join("/"),
  above: () => crumb(routeTo("jobs"), "Jobs"),
  everyMs: 5000, // each request counts the coverage again
  load: (api, { names }, signal) => api.get(jobPath(names.join("/")), {}, { signal }),
  draw(found, screen) {
    return [
      screen.heading(jobButtons(found, screen)),
      (found.error || found.lacks_because) &&
        el("p", { class: "notice error", "data-key": "error" }, prose(found.error || found.lacks_because)),
      verdictOf(found),
      card(
        "Freshness",
        facts(
          ["State", badge(found.state), found.failures ? `${count(found.failures)} failures in a row` : null],
          [
            "Lag",
            el("span", { class: "number" }, duration(found.lag_s)),
            found.lacks ? `changes are missing: ${found.lacks}` : "has every readable change",
          ],
          [
            "Watermark",
            el("span", { class: "number" }, stated(found.watermark_time)),
            found.watermark || null,
          ],
          coverage(found),
          found.verified?.same && [
            "Verified",
            "the same as its source",
            `at ${stated(found.verified.at_time)}`,
          ],
          ["Table", el("a", { href: routeTo("tables", [screen.route.names[0]]) }, screen.route.names[0])],
        ),
      ),
      card("Last iteration", iteration(found.iteration)),
      card("Spec", settings(found.spec)),
    ].filter(Boolean);
  },
  actions: jobActions(),
};

function coverage({ coverage: share, coverage_unknown: why, source_rows: rows }) {
  if (share === undefined) return null;
  if (share === null) return ["Coverage", "unknown", why];
  return [
    "Coverage",
    el("span", { class: "number" }, `${(share * 100).toFixed(share < 1 ? 2 : 0)} %`),
    `of ${count(rows)} rows`,
  ];
}

function iteration(found) {
  if (!found?.started) return el("p", { class: "muted" }, "None yet.");
  return facts(
    ["From", timeOf(found.from_ts), found.from_ts || "from the start"],
    ["To", timeOf(found.to_ts), found.to_ts],
    ["Started", stated(found.started)],
    ["Ended", found.ended ? stated(found.ended) : "running"],
  );
}
