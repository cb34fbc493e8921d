// Signing in: the token of an account, kept by the tab.

import { el } from "../dom.js";
import { field } from "../parts/pieces.js";

const TOKEN = /^[\x21-\x7e]+$/; // what an Authorization header can hold

/** The view; `refused` is what the API said of the last token, `done` goes on. */
export function entry(session, refused, done) {
  return {
    name: "entry",
    title: () => "Sign in",
    everyMs: 0,
    load: () => Promise.resolve({}),
    draw(_data, screen) {
      const error =
        screen.memory.error ?? (refused && "This token is not accepted. Check it, and try again.");
      const about =
        "The API of this deployment is used with the token of an account; it is kept until this tab is closed.";
      const more = {
        type: "password",
        autocomplete: "off",
        spellcheck: "false",
        required: true,
        name: "token",
      };
      return [
        el(
          "section",
          { class: "card entry", "aria-labelledby": "title", "data-key": "entry" },
          el(
            "form",
            { "data-action": "enter", novalidate: true },
            screen.heading(),
            el("p", { class: "muted" }, about),
            field("token", "Token", more, { error, hint: "In the settings: api.accounts.NAME.token" }),
            el("button", { class: "main", type: "submit" }, "Sign in"),
          ),
        ),
      ];
    },
    actions: {
      enter(screen, form) {
        const token = form.elements.token.value.trim();
        if (!TOKEN.test(token)) {
          screen.memory.error =
            token === ""
              ? "Write the token of an account."
              : "A token has no spaces and no letters beyond ASCII.";
          screen.redraw();
          form.elements.token.focus();
          return;
        }
        session.begin(token);
        done();
      },
    },
  };
}
