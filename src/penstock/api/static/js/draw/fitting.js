// Shortens text to a width, which SVG does not do.

const SIZE = 13;
let measure = null;

/** The width of a text in a drawing, in pixels. */
export function widthOf(text) {
  if (measure === null) {
    measure = document.createElement("canvas").getContext("2d");
    measure.font = `${SIZE}px ${getComputedStyle(document.documentElement).fontFamily}`;
  }
  return measure.measureText(text).width;
}

/** A name within a number of pixels. A long name keeps its end, which says more than its start. */
export function fitted(name, room) {
  if (widthOf(name) <= room) return name;
  let end = name;
  while (end.length > 1 && widthOf(`…${end}`) > room) end = end.slice(1);
  return `…${end.replace(/^[./]/, "")}`;
}
