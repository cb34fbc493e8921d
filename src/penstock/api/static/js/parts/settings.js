// Settings as they were given: a list of names and values, however deep.

import { el } from "../dom.js";

export function settings(tree) {
  const found = leaves(tree, "");
  if (found.length === 0) return el("p", { class: "muted" }, "Everything is as it is by default.");
  return el(
    "div",
    { class: "hit" },
    el("dl", {}, found.map(([name, value]) => [el("dt", { class: "mono" }, name), el("dd", { class: "mono" }, shown(value))])),
  );
}

function leaves(tree, prefix) {
  return Object.entries(tree ?? {}).flatMap(([name, value]) => {
    const full = prefix ? `${prefix}.${name}` : name;
    if (value === null || value === undefined) return [];
    if (typeof value === "object" && !Array.isArray(value)) return leaves(value, full);
    return [[full, value]];
  });
}

function shown(value) {
  return Array.isArray(value) ? value.map((each) => (typeof each === "object" ? JSON.stringify(each) : each)).join(", ") : String(value);
}
