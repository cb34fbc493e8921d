// What is asked of every page, whatever it shows: that people can read it, reach it and hear it. Runs in the page and
// gives a list of what is wrong.
() => {
  const wrong = [];
  const all = (selector) => [...document.querySelectorAll(selector)];

  // Landmarks are there once, headings have an order, ids are unique, nothing is inline.
  for (const selector of ["h1", "main", "body > header", "body > footer", "nav", "html[lang]"]) {
    if (all(selector).length !== 1) wrong.push(`there are ${all(selector).length} of ${selector}`);
  }
  let level = 0;
  for (const heading of all("h1, h2, h3, h4")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) wrong.push(`"${heading.textContent}" skips a level of headings`);
    level = next;
  }
  const ids = all("[id]").map((each) => each.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`#${id} is there twice`);
  if (all("[style], [onclick], style, script:not([src])").length > 0)
    wrong.push("there is inline code or style");
  for (const each of all("[tabindex]"))
    if (each.tabIndex > 0) wrong.push("an element jumps the order of the tab key");

  // Whatever can be used or heard has a name.
  const textOf = (id) => document.getElementById(id)?.textContent ?? "";
  const nameOf = (element) =>
    element.getAttribute("aria-label") ||
    (element.getAttribute("aria-labelledby") ?? "").split(" ").map(textOf).join(" ").trim() ||
    [...(element.labels ?? [])]
      .map((label) => label.textContent)
      .join(" ")
      .trim() ||
    (element.matches("input, select") ? "" : element.textContent.trim());
  for (const each of all("a, button, input, select, summary, section, nav, [role=region], [role=img]")) {
    if (!nameOf(each)) wrong.push(`${each.outerHTML.slice(0, 80)} has no name`);
  }
  for (const attribute of ["aria-describedby", "aria-labelledby"]) {
    for (const each of all(`[${attribute}]`)) {
      for (const id of each.getAttribute(attribute).split(" ")) {
        if (!document.getElementById(id)) wrong.push(`there is no #${id} to name something`);
      }
    }
  }
  for (const table of all("table")) if (!table.caption?.textContent) wrong.push("a table has no caption");
  for (const head of all("th")) if (head.scope !== "col") wrong.push("a head of a table has no scope");

  // The page does not scroll sideways.
  const room = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > room) {
    const wide = all("body *").filter((each) => each.getBoundingClientRect().right > room + 1);
    const outside = wide.filter((each) => !each.closest(".scroll, .unseen"));
    wrong.push(...outside.slice(0, 5).map((each) => `${each.outerHTML.slice(0, 80)} is too wide`));
  }

  // Text has the contrast of WCAG's AA against what is behind it.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const covers = (rect, text) => {
    const [a, b] = [rect.getBoundingClientRect(), text.getBoundingClientRect()];
    return a.left <= b.left && a.right >= b.right && a.top <= b.top && a.bottom >= b.bottom;
  };
  const drawnUnder = (text) => {
    const boxes = [...(text.ownerSVGElement?.querySelectorAll("rect.node, rect.lane") ?? [])];
    const fill = boxes.filter((rect) => covers(rect, text)).map((rect) => getComputedStyle(rect).fill);
    return fill.filter((each) => each !== "none").at(-1);
  };
  const ground = (element) => {
    const drawn = drawnUnder(element);
    if (drawn) return rgb(drawn);
    for (let each = element; each; each = each.parentElement) {
      const found = rgb(getComputedStyle(each).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const text = node.data.trim();
    if (!text || !element.getClientRects().length || element.closest(".unseen, title, noscript")) continue;
    const style = getComputedStyle(element);
    const ink = rgb(element.ownerSVGElement ? style.fill : style.color);
    const [brighter, darker] = [light(ink), light(ground(element))].sort((one, other) => other - one);
    const ratio = (brighter + 0.05) / (darker + 0.05);
    const large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) wrong.push(`"${text.slice(0, 40)}" has a contrast of ${ratio.toFixed(2)}`);
  }
  return wrong;
};
