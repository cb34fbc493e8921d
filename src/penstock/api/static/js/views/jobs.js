// All jobs, with the freshness of their targets and their actions.

import { jobPath } from "../api.js";
import { el } from "../dom.js";
import { counted, duration, stated } from "../format.js";
import { filterActions, filtered } from "../parts/filter.js";
import { button, notice } from "../parts/pieces.js";
import { rows } from "../parts/rows.js";
import { scheduled, verdict } from "../parts/verdict.js";
import { badge, holder, isHeld, prose } from "../parts/words.js";
import { routeToJob } from "../router.js";

const VERIFY_MS = 30 * 60_000; // comparing a large target takes long
const verdicts = new Map(); // results of comparisons that this page started, by job

export const jobs = {
  name: "jobs",
  title: () => "Jobs",
  everyMs: 2000,
  async load(api, _route, signal) {
    const [list, overview] = await Promise.all([
      api.get("/jobs", {}, { signal }),
      api.get("/overview", {}, { signal }),
    ]);
    const more = new Map(overview.jobs.map((job) => [job.job, job]));
    return list.map((job) => ({ ...more.get(job.job), ...job }));
  },
  draw(data, screen) {
    const head = screen.heading(el("p", {}, counted(data.length, "job")));
    if (data.length === 0)
      return [head, notice("There is no job yet. ", el("code", {}, "penstock job register"), " creates one.")];
    const columns = [
      {
        label: "Job",
        kind: "name",
        cell: (job) => [
          el("a", { href: routeToJob(job.job) }, job.job),
          el("span", { class: "sub" }, kindOf(job)),
        ],
      },
      { label: "State", cell: (job) => badge(job.state) },
      { label: "Lag", kind: "right", cell: (job) => el("span", { class: "number" }, duration(job.lag_s)) },
      {
        label: "Watermark",
        cell: (job) => [
          el("span", { class: "number" }, stated(job.watermark_time)),
          job.watermark ? el("span", { class: "sub mono" }, job.watermark) : null,
        ],
      },
      {
        label: "Target",
        cell: (job) =>
          job.lacks
            ? `changes are missing: ${job.lacks}`
            : el("span", { class: "muted" }, "has every readable change"),
      },
      { label: "Actions", kind: "actions", cell: (job) => jobButtons(job, screen) },
    ];
    const { shown, bar } = filtered(data, (job) => job.job, screen);
    return [
      head,
      el(
        "section",
        { class: "card", "aria-label": "Jobs" },
        bar,
        shown.length > 0 && rows("Jobs", columns, shown, { key: (job) => job.job, below }),
      ),
    ];
  },
  actions: { ...filterActions, ...jobActions() },
};

function kindOf({ consumer, trigger }) {
  return [consumer, trigger].filter(Boolean).join(", ");
}

function below(job) {
  const notes = [
    job.error &&
      el("p", { class: "error" }, job.error_code ? `Error ${job.error_code}: ` : null, prose(job.error)),
    !job.error && isHeld(job.held_by) && el("p", { class: "muted" }, holder(job.held_by, job.job)),
    verdictOf(job),
  ].filter(Boolean);
  return notes.length > 0 ? notes : null;
}

export function jobButtons({ job, state, paused }, screen) {
  const stopped = state === "paused" || paused === true || state === "error";
  return el(
    "div",
    { class: "buttons" },
    button(stopped ? "Resume" : "Pause", stopped ? "resume" : "pause", {
      name: job,
      about: job,
      busy: screen.busy.has(job),
    }),
    button("Verify", "verify", { name: job, about: job, busy: screen.busy.has(`verify ${job}`) }),
  );
}

/** The last comparison of a job's target: one from this page, or a scheduled one with a problem. */
export function verdictOf({ job, verified }) {
  return verdicts.has(job) ? verdict(verdicts.get(job), job) : scheduled(verified, job);
}

export function jobActions() {
  return {
    pause: (screen, { dataset: { name } }) => change(screen, name, "pause", `Job ${name} is paused.`),
    resume: (screen, { dataset: { name } }) => change(screen, name, "resume", `Job ${name} is resumed.`),
    verify,
  };
}

function change(screen, name, action, message) {
  return screen.during(name, async () => {
    await screen.api.post(`${jobPath(name)}/${action}`);
    screen.shell.say(message);
    await screen.refresh();
  });
}

function verify(screen, { dataset: { name } }) {
  return screen.during(`verify ${name}`, async () => {
    screen.shell.say(`Comparing the target of ${name} with its source.`);
    const report = await screen.api.post(`${jobPath(name)}/verify`, { patienceMs: VERIFY_MS });
    verdicts.set(name, report);
    screen.shell.say(
      report.same
        ? `The target of ${name} is the same as its source.`
        : `The target of ${name} differs from its source.`,
    );
  });
}
