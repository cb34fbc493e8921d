// Settings as a list of names and values, of any depth.

import { el } from "../dom.js";

export function settings(tree) {
  const found = leaves(tree, "");
  if (found.length === 0) return el("p", { class: "muted" }, "All settings have their defaults.");
  const lines = found.map(([name, value]) => [el("dt", {}, name), el("dd", {}, shown(value))]);
  return el("dl", { class: "settings mono" }, lines);
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
  return Array.isArray(value)
    ? value.map((each) => (typeof each === "object" ? JSON.stringify(each) : each)).join(", ")
    : String(value);
}
