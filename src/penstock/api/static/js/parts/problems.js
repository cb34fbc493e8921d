// Problems and their remedies.

import { el } from "../dom.js";
import { prose } from "./words.js";

export function problems(found) {
  const made = found.map(({ part, what, message, remedy }) =>
    el(
      "li",
      { class: "problem", "data-key": `${part} ${what}` },
      el("h3", {}, part),
      el("p", {}, prose(message)),
      remedy && el("p", { class: "remedy" }, "Remedy: ", prose(remedy)),
    ),
  );
  return el("ul", { class: "problems" }, made);
}
