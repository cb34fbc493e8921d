// Runs one view: loads its data, draws it, and handles its actions.
//
// A view is {name, title(route), everyMs, load(api, route, signal), draw(data, screen), onOpen(screen), actions}.
// A view draws everything again and the page is patched, so it attaches no listeners. An element names its action
// in `data-action`; the function of that name in `actions` gets the screen and the element.

import { Away, Refused, SignInNeeded } from "./api.js";
import { el, patch } from "./dom.js";
import { Poller } from "./polling.js";

const NARROWEST = 280;

export class Screen {
  constructor(view, route, { api, shell, content, memory, go, signIn }) {
    Object.assign(this, { view, route, api, shell, content, memory, go, signIn });
    this.data = null;
    this.left = false;
    memory.busy ??= new Set(); // running actions continue when the view is left, and are shown when it is opened again
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

  /** Show a view that loads no data. */
  startAlone() {
    this.poller.stop();
    this.data = {};
    this.redraw();
    this.content.querySelector("input")?.focus();
  }

  /** Leave the view; running actions end by themselves and draw nothing. */
  stop() {
    this.left = true;
    this.poller.stop();
    this.resized.disconnect();
  }

  /** The width of a drawing in pixels. */
  get width() {
    const style = getComputedStyle(this.content);
    const inside = this.content.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return Math.max(NARROWEST, inside); // a page without layout has the width 0
  }

  /** The first heading, which gets the focus when the view is opened. */
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
    if (first) this.view.onOpen?.(this);
  }

  refused(error) {
    this.data = null;
    this.shell.rest("Refused");
    if (!(error instanceof Refused)) console.error(error); // a defect of ours: log it in the console too
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

  /** Run work under `key`, once at a time and shown as busy; show its error. */
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

/** An error as a sentence. */
export function failure(error) {
  if (error instanceof Away)
    return `The request failed: the API is not available (${error.message}). Try again later.`;
  if (!(error instanceof Refused)) console.error(error);
  return sentence(error.message);
}

function sentence(text) {
  const capitalized = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(capitalized) ? capitalized : `${capitalized}.`;
}
