// Routes: the address names a view, as in #/tables/shop.orders?from=1. Names in it are percent-encoded.

/** Parse a route; an empty one is the overview. */
export function parseRoute(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split("?", 2);
  const names = path.split("/").filter(Boolean).map(decoded);
  const [view = "overview", ...rest] = names;
  return { view, names: rest, query: Object.fromEntries(new URLSearchParams(search)) };
}

/** Write a route. */
export function routeTo(view, names = [], query = {}) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const search = new URLSearchParams(given).toString();
  return `#/${[view, ...names].map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

/** The route of a job named `database.table/job`. */
export function routeToJob(job) {
  const cut = job.indexOf("/");
  return routeTo("jobs", [job.slice(0, cut), job.slice(cut + 1)]);
}

export class Router {
  constructor(win, show) {
    this.win = win;
    this.show = show;
  }

  start() {
    this.win.addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  follow() {
    this.show(parseRoute(this.win.location.hash));
  }

  /** Go to a route; `quietly` replaces the current one in the history. */
  go(route, { quietly = false } = {}) {
    if (quietly) this.win.history.replaceState(null, "", route);
    else this.win.location.hash = route;
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // not encoded by us: use it as it is
  }
}
