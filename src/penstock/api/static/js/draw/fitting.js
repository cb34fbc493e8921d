// Text within its room: SVG does not cut it by itself.

const SIZE = 13;
let measure = null;

/** How many pixels a text of a drawing is wide. */
export function widthOf(text) {
  if (measure === null) {
    measure = document.createElement("canvas").getContext("2d");
    measure.font = `${SIZE}px ${getComputedStyle(document.documentElement).fontFamily}`;
  }
  return measure.measureText(text).width;
}

/** A name within so many pixels: of a long one the end tells more than the beginning. */
export function fitted(name, room) {
  if (widthOf(name) <= room) return name;
  let end = name;
  while (end.length > 1 && widthOf(`…${end}`) > room) end = end.slice(1);
  return `…${end.replace(/^[./]/, "")}`;
}
