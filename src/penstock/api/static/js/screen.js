// Runs one view: asks for its data, draws it, and does what a person wants of it.
//
// A view is {name, title(route), everyMs, load(api, route, signal), draw(data, screen), begun(screen), actions}.
// It draws everything anew, and what is there is patched; so it attaches no listeners. An element says what it
// does by `data-action`, a name in `actions`, which gets the screen and the element.

import { Away, Refused, SignInNeeded } from "./api.js";
import { el, patch } from "./dom.js";
import { Poller } from "./polling.js";

const NARROWEST = 280;

export class Screen {
  constructor(view, route, { api, shell, content, memory, go, signIn }) {
    Object.assign(this, { view, route, api, shell, content, memory, go, signIn });
    this.data = null;
    this.left = false;
    memory.busy ??= new Set(); // what was begun goes on when the view is left, and is known when one comes back
    this.busy = memory.busy;
    const on = {
      heard: (data) => this.heard(data),
      away: (error, nextMs) => shell.away(error, nextMs),
      refused: (error) => this.refused(error),
      signIn,
    };
    this.poller = new Poller((signal) => view.load(api, route, signal), view.everyMs, on);
    this.drawnWidth = 0;
    this.resized = new ResizeObserver(() => this.width !== this.drawnWidth && this.redraw());
  }

  start() {
    this.shell.connecting();
    patch(this.content, [this.heading(), el("p", { class: "notice", "data-key": "loading" }, "Loading…")]);
    this.resized.observe(this.content);
    this.poller.start();
  }

  /** Show a view that asks for nothing. */
  startAlone() {
    this.poller.stop();
    this.data = {};
    this.redraw();
    this.content.querySelector("input")?.focus();
  }

  /** The view is left; what was begun ends by itself, and draws nothing any more. */
  stop() {
    this.left = true;
    this.poller.stop();
    this.resized.disconnect();
  }

  /** Pixels that a drawing may be wide. */
  get width() {
    const style = getComputedStyle(this.content);
    const inside = this.content.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return Math.max(NARROWEST, inside); // a page that is not laid out yet has no width at all
  }

  /** The first heading, where focus goes when the view is opened. */
  heading(...beside) {
    const title = el("h1", { id: "title", tabindex: "-1" }, this.view.title(this.route));
    return el(
      "div",
      { class: "head", "data-key": "head" },
      el("div", {}, this.view.above?.(this.route), title),
      beside,
    );
  }

  heard(data) {
    const first = this.data === null;
    this.data = data;
    this.shell.heard(this.view.everyMs);
    this.redraw();
    if (first) this.view.begun?.(this);
  }

  refused(error) {
    this.data = null;
    this.shell.rest("Refused");
    if (!(error instanceof Refused)) console.error(error); // our own mistake: it belongs in the console, too
    patch(this.content, [
      this.heading(),
      el("p", { class: "notice error", role: "alert" }, sentence(error.message)),
    ]);
  }

  redraw() {
    if (this.data === null || this.left) return;
    this.drawnWidth = this.width;
    patch(this.content, this.view.draw(this.data, this));
  }

  refresh() {
    return this.poller.now();
  }

  /** Do something once at a time, shown as busy under `key`; say what went wrong. */
  async during(key, work) {
    if (this.busy.has(key)) return;
    this.busy.add(key);
    this.redraw();
    try {
      await work();
    } catch (error) {
      if (error instanceof SignInNeeded) this.signIn(error);
      else this.shell.say(failure(error));
    } finally {
      this.busy.delete(key);
      this.redraw();
    }
  }

  act(element, event) {
    const action = this.view.actions?.[element.dataset.action];
    if (action === undefined) return;
    if (event.type === "submit") event.preventDefault();
    action(this, element);
  }
}

/** What went wrong, in a sentence. */
export function failure(error) {
  if (error instanceof Away)
    return `That was not done: the API does not answer (${error.message}). Try again later.`;
  if (!(error instanceof Refused)) console.error(error);
  return sentence(error.message);
}

function sentence(text) {
  const said = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(said) ? said : `${said}.`;
}
