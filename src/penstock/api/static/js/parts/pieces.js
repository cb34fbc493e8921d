// Small elements that several views use.

import { el } from "../dom.js";

export function card(title, ...inside) {
  const id = `card-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return el(
    "section",
    { class: "card", "aria-labelledby": id, "data-key": id },
    el("h2", { id }, title),
    inside,
  );
}

/** A button for an action of the view; `name` is the object of the action. */
export function button(
  label,
  action,
  { name = null, busy = false, kind = null, about = null, disabled = false } = {},
) {
  const attributes = {
    type: "button",
    class: kind,
    "data-action": action,
    "data-on": "click",
    "data-name": name,
    "data-key": `${action} ${name ?? ""}`,
    "aria-label": about === null ? null : `${label} ${about}`,
    "aria-busy": busy ? "true" : null,
    disabled: busy || disabled,
  };
  return el("button", attributes, label);
}

/** A field with its label; `more` are attributes of the input. */
export function field(id, label, more = {}, { kind = "", hint = null, error = null } = {}) {
  const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ");
  const input = { id, "aria-describedby": described || null, "aria-invalid": error ? "true" : null, ...more };
  return el(
    "div",
    { class: `field ${kind}`, "data-key": id },
    el("label", { for: id }, label),
    el("input", input),
    hint && el("span", { class: "hint", id: `${id}-hint` }, hint),
    error && el("span", { class: "error", id: `${id}-error`, role: "alert" }, error),
  );
}

/** A choice with its label; options are [value, text]. */
export function choice(id, label, options, chosen, more = {}, kind = "") {
  const made = options.map(([value, text]) => el("option", { value, selected: value === chosen }, text));
  return el(
    "div",
    { class: `field ${kind}`, "data-key": id },
    el("label", { for: id }, label),
    el("select", { id, ...more }, made),
  );
}

/** Facts: [name, value, small text]. */
export function facts(...pairs) {
  const made = pairs
    .filter(Boolean)
    .map(([name, value, small]) =>
      el(
        "div",
        { "data-key": name },
        el("dt", {}, name),
        el("dd", {}, value, small && el("span", { class: "small" }, small)),
      ),
    );
  return el("dl", { class: "facts" }, made);
}

export function notice(...inside) {
  return el("p", { class: "notice" }, inside);
}

/** A link back to a list. */
export function crumb(route, text) {
  return el("p", { class: "crumb" }, el("a", { href: route }, `‹ ${text}`));
}
