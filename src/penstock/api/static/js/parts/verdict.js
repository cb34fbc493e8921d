// What a comparison of a target with its source found.

import { el } from "../dom.js";
import { counted, stated } from "../format.js";

export function verdict(report, job) {
  const at = `at ${stated(report.at_time)}`;
  if (report.same) {
    return el("p", { class: "verdict", "data-tone": "good" }, `The same as its source ${at}: ${counted(report.source_rows, "row")}.`);
  }
  const kinds = ["missing", "different", "extra", "duplicates"].filter((kind) => report[kind] > 0);
  const counts = kinds.map((kind) => `${report[kind]} ${kind}`).join(", ");
  return el("p", { class: "verdict", "data-tone": "bad" }, `Differs from its source ${at}: ${counts}. To mend it: `, el("code", {}, `penstock job repair ${job}`));
}
