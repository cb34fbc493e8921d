// The HTTP API. Failures are of three kinds, by what the page does next: sign in, wait, or say what is wrong.

import { parseExact } from "./exactjson.js";

const ROOT = "/api/v1";
const PATIENCE_MS = 15_000;
const WAITED_FOR = new Set([429, 502, 503, 504]);

/** A person has to sign in, or with another token. */
export class SignInNeeded extends Error {}

/** Nobody answers, or not now: the same can be asked again later. */
export class Away extends Error {
  constructor(message, { answered = false, retryMs = 0 } = {}) {
    super(message);
    this.answered = answered;
    this.retryMs = retryMs;
  }
}

/** It was understood and refused; the message says why. */
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

  /** Read; `query` leaves out what is null or empty. */
  get(path, query = {}, options = {}) {
    return this.ask("GET", path, query, options);
  }

  /** Do something. It may take as long as `patienceMs`. */
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
      if (signal?.aborted) throw error; // nobody waits for it any more
      throw new Away(enough.aborted ? "it takes too long to answer" : "it cannot be reached");
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

/** A path of names: each may hold any character. */
export function pathOf(...names) {
  return names.map((name) => `/${encodeURIComponent(name)}`).join("");
}

/** The path of a job, by its name `database.table/job`. */
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
      throw new Away("it answers with something else than JSON", { answered: true });
    }
  }
  const said = detailOf(text) || `it answers with status ${answer.status}`;
  if (answer.status === 401) throw new SignInNeeded(said);
  if (WAITED_FOR.has(answer.status)) {
    const retryS = Number(answer.headers.get("Retry-After"));
    throw new Away(said, { answered: true, retryMs: Number.isFinite(retryS) ? retryS * 1000 : 0 });
  }
  throw new Refused(said, answer.status);
}

function detailOf(text) {
  try {
    const problem = JSON.parse(text);
    const said = problem.detail ?? problem.title;
    return typeof said === "string" ? said : "";
  } catch {
    return "";
  }
}
