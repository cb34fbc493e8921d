// The results of comparing a target with its source.

import { el } from "../dom.js";
import { count, counted, stated } from "../format.js";
import { prose } from "./words.js";

/** The result of a comparison that this page started. */
export function verdict(report, job) {
  const at = `at ${stated(report.at_time)}`;
  if (report.same)
    return verdictLine("good", `The same as its source ${at}: ${counted(report.source_rows, "row")}.`);
  const kinds = ["missing", "different", "extra", "duplicates"].filter((kind) => report[kind] > 0);
  const counts = kinds.map((kind) => `${count(report[kind])} ${kind}`).join(", ");
  return verdictLine(
    "bad",
    `Differs from its source ${at}: ${counts}. Repair it with `,
    command(`penstock job repair ${job}`),
  );
}

/** The result of the last scheduled comparison, when it found a problem; else null. */
export function scheduled(verified, job) {
  if (!verified || verified.same === true) return null;
  if (verified.same === null) return verdictLine("bad", "The scheduled verification failed: ", prose(verified.error));
  const many = counted(verified.differences, "difference");
  return verdictLine(
    "bad",
    `Verified at ${stated(verified.at_time)}: ${many}. Repair it with `,
    command(`penstock job repair ${job}`),
  );
}

function verdictLine(tone, ...inside) {
  return el("p", { class: "verdict", "data-tone": tone }, inside);
}

function command(text) {
  return el("code", {}, text);
}
