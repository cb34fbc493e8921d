// Sign-in with the token of an account, which is kept until the tab is closed.

import { el } from "../dom.js";
import { field } from "../parts/pieces.js";

const HINT =
  "In the settings: api.accounts.NAME.token. Without accounts, penstock up prints a link that signs in; the " +
  "token is in penstock-data/secrets/admin.token.";
const TOKEN = /^[\x21-\x7e]+$/; // characters that an Authorization header allows

/** The view; `refused` is set when the API refused the last token, `done` is called with a new one. */
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
        "Sign in with the token of an account. It is kept until this tab is closed.";
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
            field("token", "Token", more, { error, hint: HINT }),
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
              ? "Enter the token of an account."
              : "A token has no spaces and only ASCII characters.";
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
