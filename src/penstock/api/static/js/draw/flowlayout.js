// The layout of the flow for a width. Pure: sizes in, boxes and pipes out.

const WIDE = 1060;
const NODE = { width: 156, height: 84 };
const PILL = { width: 214, height: 26, gap: 6, max: 5 };
const GAP = 22;
const BEND = 12;
const BETWEEN = 46; // between two nodes, for a pipe and its rate

/**
 * `feeds` and `jobs` are the numbers of targets of each branch. Returns {width, height, nodes, pipes, pills, left}:
 * boxes by name, pipes as {stage, path, labelX, labelY, anchor}, pills by branch, and the number of targets that are not drawn.
 */
export function layout(width, feeds, jobs) {
  return width >= WIDE ? across(width, feeds, jobs) : down(width, feeds, jobs);
}

function across(width, feeds, jobs) {
  const space = (width - 4 * NODE.width - PILL.width) / 4;
  const x = (column) => Math.round(column * (NODE.width + space));
  const shown = { changefeeds: Math.min(feeds, PILL.max), jobs: Math.min(jobs, PILL.max) };
  const branch = (name, left) => Math.max(NODE.height, stack(shown[name] + (left > 0 ? 1 : 0)));
  const left = { changefeeds: feeds - shown.changefeeds, jobs: jobs - shown.jobs };
  const upper = branch("changefeeds", left.changefeeds);
  const lower = branch("jobs", left.jobs);
  const height = upper + GAP + lower;
  const middle = Math.round(height / 2 - NODE.height / 2);
  const at = (column, y) => ({ x: x(column), y: Math.round(y), ...NODE });
  const nodes = {
    commit: at(0, middle),
    capture: at(1, middle),
    store: at(2, middle),
    changefeeds: at(3, (upper - NODE.height) / 2),
    jobs: at(3, upper + GAP + (lower - NODE.height) / 2),
  };
  const pills = {
    changefeeds: column(x(4), nodes.changefeeds, shown.changefeeds, left.changefeeds),
    jobs: column(x(4), nodes.jobs, shown.jobs, left.jobs),
  };
  const pipes = [
    level("commit", nodes.commit, nodes.capture),
    level("capture", nodes.capture, nodes.store),
    bent("changefeeds", nodes.store, nodes.changefeeds, -1),
    bent("jobs", nodes.store, nodes.jobs, 1),
    ...["changefeeds", "jobs"].flatMap((name) => pills[name].map((pill) => bare(name, nodes[name], pill))),
  ];
  return { width, height, nodes, pipes, pills, left };
}

function stack(pills) {
  return pills * PILL.height + Math.max(0, pills - 1) * PILL.gap;
}

function column(x, node, shown, left) {
  const many = shown + (left > 0 ? 1 : 0);
  const top = node.y + NODE.height / 2 - stack(many) / 2;
  return Array.from({ length: many }, (_, place) => ({
    x,
    y: Math.round(top + place * (PILL.height + PILL.gap)),
    width: PILL.width,
    height: PILL.height,
  }));
}

function level(stage, from, to) {
  const y = from.y + from.height / 2;
  const x1 = from.x + from.width;
  return { stage, path: `M${x1} ${y}H${to.x}`, labelX: (x1 + to.x) / 2, labelY: y - 9, anchor: "middle" };
}

function bent(stage, from, to, side) {
  const x1 = from.x + from.width;
  const y1 = from.y + from.height / 2;
  const y2 = to.y + to.height / 2;
  const x = (x1 + to.x) / 2;
  const [turn, back] = [side * BEND, -side * BEND];
  const first = `H${x - BEND}Q${x} ${y1} ${x} ${y1 + turn}`;
  const second = `V${y2 + back}Q${x} ${y2} ${x + BEND} ${y2}`;
  const path = `M${x1} ${y1}${first}${second}H${to.x}`;
  return { stage, path, labelX: x, labelY: side < 0 ? y2 - 9 : y2 + 21, anchor: "middle" };
}

function bare(stage, node, pill) {
  const x1 = node.x + node.width;
  const y1 = node.y + node.height / 2;
  const y2 = pill.y + pill.height / 2;
  const x = (x1 + pill.x) / 2;
  return { stage, path: `M${x1} ${y1}C${x} ${y1} ${x} ${y2} ${pill.x} ${y2}`, thin: true };
}

function down(width, feeds, jobs) {
  const wide = { x: 0, width, height: 64 };
  const half = { width: (width - GAP) / 2, height: NODE.height };
  const y = (row) => row * (wide.height + BETWEEN);
  const nodes = {
    commit: { ...wide, y: y(0) },
    capture: { ...wide, y: y(1) },
    store: { ...wide, y: y(2) },
    changefeeds: { x: 0, y: y(3), ...half },
    jobs: { x: half.width + GAP, y: y(3), ...half },
  };
  const pipes = [
    fall("commit", nodes.commit, nodes.capture, width / 2),
    fall("capture", nodes.capture, nodes.store, width / 2),
    fall("changefeeds", nodes.store, nodes.changefeeds, half.width / 2),
    fall("jobs", nodes.store, nodes.jobs, half.width * 1.5 + GAP, "end"),
  ];
  // A narrow page does not draw the targets: the lists below have them.
  return {
    width,
    height: y(3) + half.height,
    nodes,
    pipes,
    pills: { changefeeds: [], jobs: [] },
    left: { changefeeds: feeds, jobs },
  };
}

function fall(stage, from, to, x, anchor = "start") {
  const y1 = from.y + from.height;
  const labelX = anchor === "end" ? x - 10 : x + 10;
  return { stage, path: `M${x} ${y1}V${to.y}`, labelX, labelY: (y1 + to.y) / 2 + 4, anchor };
}
