// All jobs: how fresh the target of each is and why not, and what people do with one.

import { jobPath } from "../api.js";
import { el } from "../dom.js";
import { counted, duration, stated } from "../format.js";
import { filterActions, filtered } from "../parts/filter.js";
import { button, notice } from "../parts/pieces.js";
import { rows } from "../parts/rows.js";
import { scheduled, verdict } from "../parts/verdict.js";
import { badge, holder, isHeld, prose } from "../parts/words.js";
import { routeToJob } from "../router.js";

const VERIFY_MS = 30 * 60_000; // a large target takes its time
const verdicts = new Map(); // of comparisons made from this page, by job

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
      return [head, notice("There is no job yet. ", el("code", {}, "penstock job register"), " makes one.")];
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
            ? `lacks changes: ${job.lacks}`
            : el("span", { class: "muted" }, "has all that can be read"),
      },
      { label: "Actions", kind: "deeds", cell: (job) => jobButtons(job, screen) },
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
  const said = [
    job.error &&
      el("p", { class: "error" }, job.error_code ? `Error ${job.error_code}: ` : null, prose(job.error)),
    !job.error && isHeld(job.held_by) && el("p", { class: "muted" }, holder(job.held_by, job.job)),
    verdictOf(job),
  ].filter(Boolean);
  return said.length > 0 ? said : null;
}

export function jobButtons({ job, state, paused }, screen) {
  const rests = state === "paused" || paused === true || state === "error";
  return el(
    "div",
    { class: "buttons" },
    button(rests ? "Resume" : "Pause", rests ? "resume" : "pause", {
      name: job,
      about: job,
      busy: screen.busy.has(job),
    }),
    button("Verify", "verify", { name: job, about: job, busy: screen.busy.has(`verify ${job}`) }),
  );
}

/** What was last found of a job's target: from here, or on its schedule if that was not good. */
export function verdictOf({ job, verified }) {
  return verdicts.has(job) ? verdict(verdicts.get(job), job) : scheduled(verified, job);
}

export function jobActions() {
  return {
    pause: (screen, { dataset: { name } }) => change(screen, name, "pause", `Job ${name} is paused.`),
    resume: (screen, { dataset: { name } }) => change(screen, name, "resume", `Job ${name} goes on.`),
    verify,
  };
}

function change(screen, name, deed, said) {
  return screen.during(name, async () => {
    await screen.api.post(`${jobPath(name)}/${deed}`);
    screen.shell.say(said);
    await screen.refresh();
  });
}

function verify(screen, { dataset: { name } }) {
  return screen.during(`verify ${name}`, async () => {
    screen.shell.say(`The target of ${name} is compared with its source.`);
    const report = await screen.api.post(`${jobPath(name)}/verify`, { patienceMs: VERIFY_MS });
    verdicts.set(name, report);
    screen.shell.say(
      report.same
        ? `The target of ${name} is the same as its source.`
        : `The target of ${name} differs from its source.`,
    );
  });
}
