// The entry point: wires the API, the router, the shell and the views.

import { Api } from "./api.js";
import { Router, routeTo } from "./router.js";
import { Screen } from "./screen.js";
import { Session } from "./session.js";
import { Shell } from "./shell.js";
import { changefeed } from "./views/changefeed.js";
import { changefeeds } from "./views/changefeeds.js";
import { job } from "./views/job.js";
import { jobs } from "./views/jobs.js";
import { entry } from "./views/entry.js";
import { missing } from "./views/missing.js";
import { overview } from "./views/overview.js";
import { search } from "./views/search.js";
import { table } from "./views/table.js";
import { tables } from "./views/tables.js";

const content = document.getElementById("content");
const session = new Session(window.sessionStorage);
const api = new Api(session);
const shell = new Shell(document);
const memories = new Map(); // the state of views, while the page is open
let screen = null;
let opened = 0;

/** The view of a route. */
function viewOf({ view, names }) {
  const alone = { overview, changefeeds, jobs, tables, search };
  const one = { changefeeds: [changefeed, 1], jobs: [job, 2], tables: [table, 1] };
  if (names.length === 0) return alone[view] ?? missing;
  const [found, depth] = one[view] ?? [missing, 0];
  return names.length === depth ? found : missing;
}

function show(route) {
  open(viewOf(route), route);
}

function open(view, route) {
  screen?.stop();
  const key = `${view.name} ${route.names.join("/")}`;
  if (!memories.has(key)) memories.set(key, {});
  const memory = memories.get(key);
  screen = new Screen(view, route, { api, shell, content, memory, go: (...to) => router.go(...to), signIn });
  shell.at(route.view, view.title(route));
  screen.start();
  if (opened > 0) document.getElementById("title")?.focus(); // a screen reader reads the new title
  window.scrollTo(0, 0);
  opened += 1;
}

/** Ask for a token, then continue where the user was. */
function signIn(error) {
  const refused = session.token !== null ? error?.message : null;
  session.end();
  shell.signedIn(null);
  screen?.stop();
  const view = entry(session, refused, () => {
    knowWho();
    router.follow();
  });
  screen = new Screen(view, { view: "", names: [], query: {} }, { api, shell, content, memory: {}, signIn });
  shell.at("", view.title());
  shell.rest("Signed out");
  screen.startAlone();
}

function signOut() {
  session.end();
  router.go(routeTo("overview"), { quietly: true });
  window.location.reload(); // the next user may be another one: drop everything that was shown
}

/** Show the account of the caller; without accounts there is none to show. */
async function knowWho() {
  if (session.token === null) return;
  try {
    const me = await api.get("/me");
    shell.signedIn(me.admin ? `${me.account} (admin)` : me.account, signOut);
  } catch {
    // The view uses the same API and shows the error; the shell shows no name.
    shell.signedIn("Signed in", signOut);
  }
}

for (const kind of ["click", "submit", "input", "change"]) {
  content.addEventListener(kind, (event) => {
    const element = event.target.closest(
      kind === "submit" ? "form[data-action]" : `[data-action][data-on="${kind}"]`,
    );
    if (element !== null) screen?.act(element, event);
  });
}

// Before the router: it would show the token as the name of a view.
session.beginFromLink(window);
window.addEventListener("hashchange", () => {
  if (session.beginFromLink(window)) knowWho();
});
const router = new Router(window, show);
knowWho();
router.start();
