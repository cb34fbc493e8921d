// What stands around every view: the menu, who is signed in, whether numbers are live, and what was just done.

import { el } from "./dom.js";
import { clock, duration } from "./format.js";

const SAID_MS = 8000;
const OLD_AFTER = 3; // polls that should have come and did not: a suspended laptop, a throttled tab

export class Shell {
  constructor(page, now = () => Date.now()) {
    this.page = page;
    this.now = now;
    this.find = (id) => page.getElementById(id);
    this.trouble = null;
    this.saying = null;
    this.connecting();
    setInterval(() => this.tick(), 1000);
    this.find("skip").addEventListener("click", (event) => {
      event.preventDefault(); // the address names the view: it is not for places in the page
      this.find("content").focus();
    });
  }

  /** Nothing is known of the view yet. An API that was away is so until it answers. */
  connecting() {
    Object.assign(this, { heardMs: null, everyMs: 0, resting: null });
    this.tick();
  }

  /** What is shown has just been said by the API, which is asked every so often. */
  heard(everyMs) {
    Object.assign(this, { heardMs: this.now(), everyMs, resting: null, trouble: null });
    this.tick();
  }

  /** The API does not answer, and is asked again later. */
  away(error, nextMs) {
    const sinceMs = this.trouble?.sinceMs ?? this.now();
    this.trouble = { error, sinceMs, nextMs: this.now() + nextMs };
    this.tick();
  }

  /** There are no numbers, for a reason that the view tells. */
  rest(text) {
    Object.assign(this, { heardMs: null, everyMs: 0, resting: text, trouble: null });
    this.tick();
  }

  tick() {
    const banner = this.find("away");
    const text = this.trouble === null ? "" : this.troubleTold();
    banner.hidden = text === "";
    if (banner.textContent !== text) banner.textContent = text; // what is set is read aloud again
    this.show(...this.link());
  }

  troubleTold() {
    const { error, sinceMs } = this.trouble;
    const what = error.answered ? "The API cannot answer now" : "The API does not answer";
    const shown = `What is shown is as of ${clock(this.heardMs ?? 0)} and may not hold any more.`;
    return `${what}: ${error.message}. Away since ${clock(sinceMs)}.${this.heardMs === null ? "" : ` ${shown}`}`;
  }

  /** How things are between page and API, and that in words. */
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

  /** Mark where a person is. */
  at(view, title) {
    this.page.title = `${title} · Penstock`;
    for (const each of this.find("menu").querySelectorAll("a")) {
      if (each.dataset.view === view) each.setAttribute("aria-current", "page");
      else each.removeAttribute("aria-current");
    }
  }

  /** Show who is signed in; null: nobody has to. */
  signedIn(account, signOut) {
    this.find("account").hidden = account === null;
    this.find("account").textContent = account ?? "";
    this.find("sign-out").hidden = account === null;
    this.find("sign-out").onclick = signOut;
  }

  /** Tell what was done, for a while. */
  say(text) {
    this.find("said").replaceChildren(el("p", {}, text));
    clearTimeout(this.saying);
    this.saying = setTimeout(() => this.find("said").replaceChildren(), SAID_MS);
  }
}
