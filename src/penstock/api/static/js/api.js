// The HTTP API. There are three kinds of errors, by what the page does next: sign in, wait, or show the error.

import { parseExact } from "./exactjson.js";

const ROOT = "/api/v1";
const PATIENCE_MS = 15_000;
const WAITED_FOR = new Set([429, 502, 503, 504]);

/** The user must sign in, or use another token. */
export class SignInNeeded extends Error {}

/** The API does not answer now: the same request can be repeated later. */
export class Away extends Error {
  constructor(message, { answered = false, retryMs = 0 } = {}) {
    super(message);
    this.answered = answered;
    this.retryMs = retryMs;
  }
}

/** The API refused the request; the message says why. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export class Api {
  constructor(session, fetching = (...given) => window.fetch(...given)) {
    this.session = session;
    this.fetching = fetching;
  }

  /** Send a GET; values of `query` that are null or empty are left out. */
  get(path, query = {}, options = {}) {
    return this.ask("GET", path, query, options);
  }

  /** Send a POST. It may take up to `patienceMs`. */
  post(path, options = {}) {
    return this.ask("POST", path, {}, options);
  }

  async ask(method, path, query, { signal = null, patienceMs = PATIENCE_MS, body = null } = {}) {
    const enough = AbortSignal.timeout(patienceMs);
    const ends = signal === null ? enough : AbortSignal.any([signal, enough]);
    let answer;
    let text;
    try {
      const sent = body === null ? {} : { body: JSON.stringify(body) };
      const request = {
        method,
        headers: this.headers(body),
        signal: ends,
        cache: "no-store",
        redirect: "error",
        ...sent,
      };
      answer = await this.fetching(address(path, query), request);
      text = await answer.text();
    } catch (error) {
      if (signal?.aborted) throw error; // the caller has cancelled it
      throw new Away(enough.aborted ? "it took too long to answer" : "it cannot be reached");
    }
    return understood(answer, text);
  }

  headers(body) {
    const { token } = this.session;
    return {
      Accept: "application/json",
      ...(body === null ? {} : { "Content-Type": "application/json" }),
      ...(token ? { Authorization: `Bearer ${token}` } : {}),
    };
  }
}

/** A path of names, which may contain any character. */
export function pathOf(...names) {
  return names.map((name) => `/${encodeURIComponent(name)}`).join("");
}

/** The API path of a job named `database.table/job`. */
export function jobPath(job) {
  const cut = job.indexOf("/");
  return `/jobs${pathOf(job.slice(0, cut), job.slice(cut + 1))}`;
}

function address(path, query) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const text = new URLSearchParams(given).toString();
  return `${ROOT}${path}${text ? `?${text}` : ""}`;
}

function understood(answer, text) {
  if (answer.ok) {
    if (text === "") return null;
    try {
      return parseExact(text);
    } catch {
      throw new Away("its answer is not JSON", { answered: true });
    }
  }
  const message = detailOf(text) || `it answered with status ${answer.status}`;
  if (answer.status === 401) throw new SignInNeeded(message);
  if (WAITED_FOR.has(answer.status)) {
    const retryS = Number(answer.headers.get("Retry-After"));
    throw new Away(message, { answered: true, retryMs: Number.isFinite(retryS) ? retryS * 1000 : 0 });
  }
  throw new Refused(message, answer.status);
}

function detailOf(text) {
  try {
    const problem = JSON.parse(text);
    const detail = problem.detail ?? problem.title;
    return typeof detail === "string" ? detail : "";
  } catch {
    return "";
  }
}
