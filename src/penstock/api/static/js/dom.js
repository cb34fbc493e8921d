// Creates elements, and patches the page to a new drawing of a view. Data becomes text and attribute values
// only: nothing in these pages parses markup.

const SVG = "http://www.w3.org/2000/svg";
const OPEN = "open"; // the user decides whether an existing list is open

/** Create an HTML element. Attributes that are null, undefined or false are left out; true is an empty one. */
export function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    // A handler or style in an attribute would be inline code, which the content security policy forbids.
    if (name.startsWith("on") || name === "style") throw new Error(`no attribute ${name} here`);
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/**
 * Patch the children of `parent` to equal `wanted`, and keep existing elements, so that focus, open lists, typed
 * text and scroll positions survive. Elements with the same `data-key` are the same element.
 */
export function patch(parent, wanted) {
  const active = document.activeElement;
  arrange(
    parent,
    wanted.flat(Infinity).filter((node) => node instanceof Node),
  );
  // An element that was moved has lost focus.
  if (active !== document.activeElement && active?.isConnected) active.focus({ preventScroll: true });
}

function arrange(parent, wanted) {
  const kept = keyed(parent.childNodes);
  const keys = keyed(wanted);
  // Remove first, so that as few elements as possible are moved.
  for (const [key, element] of kept) if (!keys.has(key)) element.remove();
  let place = parent.firstChild;
  for (const node of wanted) {
    const found = kept.get(keyOf(node)) ?? (same(place, node) ? place : null);
    kept.delete(keyOf(node)); // if a key occurs twice, each occurrence gets its own element
    if (found === null) {
      parent.insertBefore(node, place);
    } else {
      if (found === place) place = place.nextSibling;
      else parent.insertBefore(found, place);
      update(found, node);
    }
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

function keyOf(node) {
  return node?.dataset?.key;
}

function keyed(nodes) {
  const found = new Map();
  for (const node of nodes) if (keyOf(node) !== undefined) found.set(keyOf(node), node);
  return found;
}

function same(one, other) {
  return (
    one !== null &&
    one.nodeType === other.nodeType &&
    one.nodeName === other.nodeName &&
    keyOf(one) === keyOf(other)
  );
}

function update(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!node.hasAttribute(name) && name !== OPEN) old.removeAttribute(name);
  for (const { name, value } of node.attributes) {
    if (old.getAttribute(name) !== value && name !== OPEN) old.setAttribute(name, value);
  }
  arrange(old, [...node.childNodes]);
}
