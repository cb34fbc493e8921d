// The frame around every view: menu, account, state of the connection, and messages.

import { el } from "./dom.js";
import { clock, duration } from "./format.js";

const MESSAGE_MS = 8000;
const OLD_AFTER = 3; // missed polls, after a suspended laptop or a throttled tab

export class Shell {
  constructor(page, now = () => Date.now()) {
    this.page = page;
    this.now = now;
    this.find = (id) => page.getElementById(id);
    this.trouble = null;
    this.messageTimer = null;
    this.connecting();
    setInterval(() => this.tick(), 1000);
    this.find("skip").addEventListener("click", (event) => {
      event.preventDefault(); // the fragment of the address is for views, not for anchors
      this.find("content").focus();
    });
  }

  /** A new view has no data yet. An API that was away counts as away until it answers. */
  connecting() {
    Object.assign(this, { heardMs: null, everyMs: 0, resting: null });
    this.tick();
  }

  /** The API has just answered; it is asked again after `everyMs`. */
  heard(everyMs) {
    Object.assign(this, { heardMs: this.now(), everyMs, resting: null, trouble: null });
    this.tick();
  }

  /** The API does not answer; it is asked again later. */
  away(error, nextMs) {
    const sinceMs = this.trouble?.sinceMs ?? this.now();
    this.trouble = { error, sinceMs, nextMs: this.now() + nextMs };
    this.tick();
  }

  /** There is no data, for a reason that the view shows. */
  rest(text) {
    Object.assign(this, { heardMs: null, everyMs: 0, resting: text, trouble: null });
    this.tick();
  }

  tick() {
    const banner = this.find("away");
    const text = this.trouble === null ? "" : this.troubleTold();
    banner.hidden = text === "";
    if (banner.textContent !== text) banner.textContent = text; // setting it makes a screen reader read it again
    this.show(...this.link());
  }

  troubleTold() {
    const { error, sinceMs } = this.trouble;
    const what = error.answered ? "The API cannot answer now" : "The API does not answer";
    const shown = `The page shows the state of ${clock(this.heardMs ?? 0)}, which may be out of date.`;
    return `${what}: ${error.message}. Away since ${clock(sinceMs)}.${this.heardMs === null ? "" : ` ${shown}`}`;
  }

  /** The state of the connection to the API, and its text. */
  link() {
    if (this.trouble !== null) {
      const waits = Math.ceil(Math.max(0, this.trouble.nextMs - this.now()) / 1000);
      return ["away", waits > 0 ? `Away, next try in ${waits} s` : "Away, trying"];
    }
    if (this.resting !== null) return ["idle", this.resting];
    if (this.heardMs === null) return ["connecting", "Connecting"];
    const ageMs = this.now() - this.heardMs;
    if (ageMs <= OLD_AFTER * this.everyMs + 1000) return ["live", "Live"];
    return ["old", `As of ${clock(this.heardMs)}, ${duration(ageMs / 1000)} ago`];
  }

  show(state, text) {
    this.page.body.dataset.link = state;
    const shown = this.find("link-text");
    if (shown.textContent !== text) shown.textContent = text;
  }

  /** Mark the current view in the menu. */
  at(view, title) {
    this.page.title = `${title} · Penstock`;
    for (const link of this.find("menu").querySelectorAll("a")) {
      if (link.dataset.view === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  /** Show the account that is signed in; null when no sign-in is needed. */
  signedIn(account, signOut) {
    this.find("account").hidden = account === null;
    this.find("account").textContent = account ?? "";
    this.find("sign-out").hidden = account === null;
    this.find("sign-out").onclick = signOut;
  }

  /** Show a message for a while. */
  say(text) {
    this.find("messages").replaceChildren(el("p", {}, text));
    clearTimeout(this.messageTimer);
    this.messageTimer = setTimeout(() => this.find("messages").replaceChildren(), MESSAGE_MS);
  }
}
