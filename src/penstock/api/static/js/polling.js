// Polls the API: less often while it does not answer, and not at all while the page is hidden.

import { Away, SignInNeeded } from "./api.js";

const SLOWEST_MS = 30_000;
const SPREAD = 0.2; // so that many pages do not return to one API at the same moment

/** The wait after a number of failures in a row. */
export function backoffMs(everyMs, failures, chance) {
  const wait = Math.min(SLOWEST_MS, everyMs * 2 ** failures);
  return wait * (1 + SPREAD * chance);
}

export class Poller {
  /**
   * `ask(signal)` fetches, `on.heard(data)` gets the data. `on.away(error, nextMs)` gets every temporary error,
   * `on.refused(error)` the others; `on.signIn(error)` ends the polling.
   */
  constructor(ask, everyMs, on, page = document) {
    Object.assign(this, { ask, everyMs, on, page, failures: 0, timer: null, asking: null, stopped: false });
    this.looked = () => this.seen();
    page.addEventListener("visibilitychange", this.looked);
  }

  start() {
    return this.now();
  }

  stop() {
    this.stopped = true;
    this.page.removeEventListener("visibilitychange", this.looked);
    this.rest();
  }

  /** Ask at once; cancel a request that is running. */
  async now() {
    this.rest();
    if (this.stopped) return;
    const asking = new AbortController();
    this.asking = asking;
    try {
      const data = await this.ask(asking.signal);
      if (asking.signal.aborted) return;
      this.failures = 0;
      this.on.heard(data);
      this.again(this.everyMs);
    } catch (error) {
      if (!asking.signal.aborted) this.failed(error);
    }
  }

  failed(error) {
    if (error instanceof SignInNeeded) {
      this.stop();
      this.on.signIn(error);
      return;
    }
    this.failures += 1;
    const pause = backoffMs(this.everyMs, this.failures - 1, Math.random());
    const nextMs = Math.max(pause, error.retryMs ?? 0);
    if (error instanceof Away) this.on.away(error, nextMs);
    else this.on.refused(error);
    this.again(nextMs);
  }

  again(ms) {
    if (this.stopped || this.page.hidden) return;
    this.timer = setTimeout(() => this.now(), ms);
  }

  rest() {
    clearTimeout(this.timer);
    this.asking?.abort();
  }

  seen() {
    if (this.page.hidden) this.rest();
    else this.now();
  }
}
