// What comparisons of a target with its source found.

import { el } from "../dom.js";
import { count, counted, stated } from "../format.js";
import { prose } from "./words.js";

/** Of a comparison that was made from this page. */
export function verdict(report, job) {
  const at = `at ${stated(report.at_time)}`;
  if (report.same)
    return said("good", `The same as its source ${at}: ${counted(report.source_rows, "row")}.`);
  const kinds = ["missing", "different", "extra", "duplicates"].filter((kind) => report[kind] > 0);
  const counts = kinds.map((kind) => `${count(report[kind])} ${kind}`).join(", ");
  return said(
    "bad",
    `Differs from its source ${at}: ${counts}. To mend it: `,
    command(`penstock job repair ${job}`),
  );
}

/** Of the last one that was made on a schedule, when something was wrong; null otherwise. */
export function scheduled(verified, job) {
  if (!verified || verified.same === true) return null;
  if (verified.same === null) return said("bad", "It could not be verified: ", prose(verified.error));
  const many = counted(verified.differences, "difference");
  return said(
    "bad",
    `Verified at ${stated(verified.at_time)}: ${many}. To mend it: `,
    command(`penstock job repair ${job}`),
  );
}

function said(tone, ...inside) {
  return el("p", { class: "verdict", "data-tone": tone }, inside);
}

function command(text) {
  return el("code", {}, text);
}
