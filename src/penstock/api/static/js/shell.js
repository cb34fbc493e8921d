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
    this.quiet = null;
    this.saying = null;
    this.connecting();
    setInterval(() => this.tick(), 1000);
    this.find("skip").addEventListener("click", (event) => {
      event.preventDefault(); // the address names the view: it is not for places in the page
      this.find("content").focus();
    });
  }

  /** Nothing is known of the view yet. */
  connecting() {
    Object.assign(this, { heardMs: null, everyMs: 0, trouble: null });
    this.tick();
  }

  /** What is shown has just been said by the API, which is asked every so often. */
  heard(everyMs) {
    Object.assign(this, { heardMs: this.now(), everyMs, trouble: null });
    this.tick();
  }

  /** The API does not answer, and is asked again later. */
  away(error, nextMs) {
    const sinceMs = this.trouble?.sinceMs ?? this.now();
    this.trouble = { error, sinceMs, nextMs: this.now() + nextMs };
    this.tick();
  }

  /** Nothing is polled: a person has to do something first. */
  rest() {
    Object.assign(this, { heardMs: null, everyMs: 0, trouble: null });
    this.show("idle", "Signed out");
    this.find("away").hidden = true;
  }

  tick() {
    const banner = this.find("away");
    banner.hidden = this.trouble === null;
    if (this.trouble !== null) {
      const told = this.trouble.error.answered ? "The API cannot answer now" : "The API does not answer";
      const asOf =
        this.heardMs === null
          ? ""
          : ` What is shown is as of ${clock(this.heardMs)} and may not hold any more.`;
      const text = `${told}: ${this.trouble.error.message}. Away since ${clock(this.trouble.sinceMs)}.${asOf}`;
      if (banner.textContent !== text) banner.textContent = text; // what is set is read aloud again
      const waits = Math.max(0, this.trouble.nextMs - this.now()) / 1000;
      this.show("away", waits > 0.5 ? `Away, next try in ${Math.ceil(waits)} s` : "Away, trying");
    } else if (this.heardMs === null) {
      if (this.page.body.dataset.link !== "idle") this.show("connecting", "Connecting");
    } else if (this.now() - this.heardMs > OLD_AFTER * this.everyMs + 1000) {
      this.show("old", `As of ${clock(this.heardMs)}, ${duration((this.now() - this.heardMs) / 1000)} ago`);
    } else {
      this.show("live", "Live");
    }
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
