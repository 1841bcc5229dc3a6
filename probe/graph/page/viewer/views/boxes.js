// The chosen subtree as nested boxes, stacked in order of execution; arcs show who feeds whom.

const MOST_BOXES = 500;
const BOX = { width: 176, height: 26, gap: 8, across: 4 };

/**
 * @typedef {{row: number, lines: Box[][], hidden: number, x: number, y: number, w: number, h: number}} Box
 */

/** @param {string} tag @param {Record<string, string | number>} set @param {...Node} inside */
function svg(tag, set, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(set)) made.setAttribute(key, String(value));
  made.append(...inside);
  return made;
}

/** The boxes of a row and of what is open inside, with their sizes. @param {number} row @param {Set<number>} open @param {{left: number}} budget @returns {Box} */
function measured(row, open, budget) {
  const { rows } = state;
  const { width, height, gap, across } = BOX;
  /** @type {Box} */
  const box = { row, lines: [], hidden: 0, x: 0, y: 0, w: width, h: height };
  if (!open.has(row)) return box;
  const children = rows.children(row);
  const visible = children.slice(0, budget.left);
  budget.left -= visible.length;
  box.hidden = children.length - visible.length;
  for (const child of visible) {
    const last = box.lines[box.lines.length - 1];
    const isLeaf = !rows.hasInside(child);
    const one = measured(child, open, budget);
    if (isLeaf && last && last.length < across && !rows.hasInside(last[0].row)) last.push(one);
    else box.lines.push([one]);
  }
  box.h += gap + (box.hidden ? height : 0);
  for (const line of box.lines) {
    box.w = Math.max(box.w, 2 * gap + line.reduce((sum, one) => sum + one.w + gap, -gap));
    box.h += Math.max(...line.map((one) => one.h)) + gap;
  }
  return box;
}

/** Gives boxes their places; a module is as wide as what it stands in. @param {Box} box @param {number} x @param {number} y @param {number} w */
function placed(box, x, y, w) {
  const { height, gap } = BOX;
  [box.x, box.y, box.w] = [x, y, w];
  let below = y + height + gap;
  for (const line of box.lines) {
    let right = x + gap;
    for (const one of line) {
      placed(one, right, below, state.rows.hasInside(one.row) ? w - 2 * gap : one.w);
      right += one.w + gap;
    }
    below += Math.max(...line.map((one) => one.h)) + gap;
  }
}

/** Pairs of boxes inside of one: what the first returned, or a call in it, goes into the second. @param {Box} box @param {(Maker[] | 0)[]} makers @returns {[Box, Box][]} */
function edgesIn(box, makers) {
  const { rows } = state;
  const inside = box.lines.flat();
  return inside.flatMap((one, place) => {
    /** @type {Set<Box>} */
    const givers = new Set();
    for (let row = rows.first[one.row]; row <= one.row; row++) {
      for (const maker of (makers[row] || []).flat()) {
        const from = row - maker;
        const giver = maker > 0 && from < rows.first[one.row] && inside.slice(0, place).find((other) => from <= other.row && from >= rows.first[other.row]);
        if (giver) givers.add(giver);
      }
    }
    return [...givers].map((giver) => /** @type {[Box, Box]} */ ([giver, one]));
  });
}

/** @param {Box} from @param {Box} to */
function arc(from, to) {
  const isBeside = from.x + from.w === to.x + to.w;
  const [x1, y1] = isBeside ? [from.x + from.w, from.y + from.h / 2] : [from.x + from.w / 2, from.y + (from.y === to.y ? 0 : from.h)];
  const [x2, y2] = isBeside ? [to.x + to.w, to.y + BOX.height / 2] : [to.x + to.w / 2, to.y];
  const bend = 12 + Math.min(28, Math.abs(y2 - y1) / 5);
  const [bx, b1, b2] = isBeside ? [bend, 0, 0] : [0, from.y === to.y ? -14 : bend, from.y === to.y ? -14 : -bend];
  return svg("path", { class: "arc", "data-ends": `${from.row} ${to.row}`, d: `M${x1} ${y1}C${x1 + bx} ${y1 + b1} ${x2 + bx} ${y2 + b2} ${x2} ${y2}` });
}

/** @param {HTMLElement} container */
function mountBoxes(container) {
  const { rows } = state;
  /** What is shown of a row: its subtree; of a call without one, enough around it to see where it stands. @param {number} row */
  function above(row) {
    if (rows.hasInside(row)) return row;
    let up = row;
    while (rows.parent[up] >= 0 && up - rows.first[up] < 8) up = rows.parent[up];
    return up;
  }
  let focus = state.selected < 0 ? rows.length - 1 : state.selected;
  let root = above(focus);
  let view = { x: 0, y: 0, scale: 1 };
  let drawn = 0;
  /** @type {Set<number>} */
  let open = new Set();
  /** @type {Box[]} */
  let boxes = [];
  const layer = svg("g", {});
  const picture = svg("svg", { class: "boxes", role: "group", "aria-label": VIEW_TEXTS.boxes }, layer);
  const count = el("span", {});
  const path = el("span", { class: "path" });
  container.append(el("div", { class: "tools" }, button(VIEW_TEXTS.up, goUp), path, count), el("p", { class: "hint" }, `${hasBlock(`c${rows.k}f`) ? VIEW_TEXTS.arcs : TEXTS.noEdges} ${VIEW_TEXTS.boxKeys}`));
  container.append(picture);
  const move = () => layer.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);

  /** The root opens, and level by level what is inside, as long as it stays easy to look at. */
  function openFew() {
    open = new Set([root]);
    let seen = rows.children(root).length;
    for (const row of open) {
      for (const child of rows.children(row)) {
        const inside = rows.hasInside(child) ? rows.children(child).length : 0;
        if (inside && seen + inside <= 60) open.add(child), (seen += inside);
      }
    }
    for (let up = rows.parent[focus]; up >= 0 && up !== root; up = rows.parent[up]) open.add(up);
    view = { x: 12, y: 12, scale: 1 };
    const { width } = picture.getBoundingClientRect();
    draw();
    view.scale = Math.min(1, Math.max(0.5, (width - 48) / boxes[0].w));
    move();
  }
  /** @param {Box} box */
  function shape(box) {
    const { row, x, y, w, h } = box;
    const kind = rows.columns.kind[row];
    const { letter, name } = state.manifest.statuses[open.has(row) ? rows.status[row] : rows.worst[row]];
    const up = rows.parent[row];
    // The box of an API is small: its name and number say most.
    const full = rows.name(row);
    const label = kind === 1 ? full.split(".").slice(1, -1).join(".") || full : nameParts(full, up < 0 ? "" : rows.name(up)).join(" ");
    const most = Math.max(4, Math.floor((w - 34) / 7.3));
    const more = rows.hasInside(row) && !open.has(row);
    // What is open has the colours of what is inside.
    const style = open.has(row) ? null : distanceStyle(rows.info, distanceOf(rows, row));
    const filled = /** @type {Record<string, string>} */ (style ? { style } : {});
    return svg("g", {
      class: `box ${tone(open.has(row) ? rows.status[row] : rows.worst[row])}${kind === 9 ? " group" : ""}${row === state.selected ? " selected" : ""}`,
      tabindex: row === focus ? 0 : -1, role: "button", "data-node": rows.name(row), "data-row": row, "aria-label": [rows.name(row), name].filter(Boolean).join(", "),
      ...(rows.hasInside(row) ? { "aria-expanded": String(open.has(row)) } : {}),
    },
    svg("title", {}, document.createTextNode(`${rows.name(row)}\n${name}`)),
    svg("rect", { x, y, width: w, height: h, rx: kind === 1 ? BOX.height / 2 : 5, ...filled }),
    svg("text", { x: x + 10, y: y + 17, class: "letter", ...filled }, document.createTextNode(letter)),
    svg("text", { x: x + 26, y: y + 17, ...filled }, document.createTextNode((more ? "▸ " : "") + (label.length > most ? `${label.slice(0, most - 1)}…` : label))),
    ...(box.hidden ? [svg("text", { x: x + 26, y: y + h - 10, class: "more" }, document.createTextNode(fill(VIEW_TEXTS.more, box.hidden)))] : []));
  }
  function draw() {
    const mine = ++drawn;
    const tree = measured(root, open, { left: MOST_BOXES - 1 });
    placed(tree, 0, 0, tree.w);
    boxes = [];
    const ahead = [tree];
    for (let box = ahead.pop(); box; box = ahead.pop()) {
      boxes.push(box);
      ahead.push(...box.lines.flat().reverse());
    }
    if (!boxes.some((box) => box.row === focus)) focus = root;
    layer.replaceChildren(...boxes.map(shape));
    path.textContent = rows.name(root);
    count.textContent = fill(VIEW_TEXTS.tooMany, boxes.length, 0);
    move();
    void rows.makers().then((makers) => {
      if (mine !== drawn) return;
      const edges = boxes.flatMap((box) => edgesIn(box, makers));
      layer.append(...edges.map(([from, to]) => arc(from, to)));
      count.textContent = fill(VIEW_TEXTS.tooMany, boxes.length, edges.length);
      markArcs();
    }, showError);
  }
  /** The arcs of the chosen box stand out. */
  function markArcs() {
    for (const one of layer.querySelectorAll(".arc")) one.classList.toggle("selected", (one.getAttribute("data-ends") ?? "").split(" ").includes(String(state.selected)));
  }
  /** @param {number} row @param {boolean} [withFocus] */
  function choose(row, withFocus) {
    focus = row;
    select(row);
    for (const one of layer.querySelectorAll(".box")) {
      const isIt = Number(one.getAttribute("data-row")) === row;
      one.classList.toggle("selected", isIt);
      one.setAttribute("tabindex", isIt ? "0" : "-1");
      if (isIt && withFocus) /** @type {SVGElement} */ (one).focus();
    }
    markArcs();
  }
  /** @param {number} row */
  function toggle(row) {
    if (!rows.hasInside(row)) return openInOutline(rows.k, row);
    if (row !== root && !open.delete(row)) open.add(row);
    focus = row;
    draw();
    choose(row, true);
  }
  function goUp() {
    if (rows.parent[root] < 0) return;
    focus = root;
    root = rows.parent[root];
    openFew();
    choose(focus, true);
  }
  /** @param {number} factor @param {number} x @param {number} y */
  function zoom(factor, x, y) {
    const scale = Math.min(4, Math.max(0.1, view.scale * factor));
    view = { x: x - ((x - view.x) * scale) / view.scale, y: y - ((y - view.y) * scale) / view.scale, scale };
    move();
  }
  /** @param {Event} event */
  const rowAt = (event) => Number(/** @type {Element} */ (event.target).closest("[data-row]")?.getAttribute("data-row") ?? -1);
  picture.addEventListener("click", (event) => rowAt(event) >= 0 && choose(rowAt(event), true));
  picture.addEventListener("dblclick", (event) => rowAt(event) >= 0 && toggle(rowAt(event)));
  picture.addEventListener("wheel", (event) => {
    const wheel = /** @type {WheelEvent} */ (event);
    wheel.preventDefault();
    const at = picture.getBoundingClientRect();
    zoom(wheel.deltaY < 0 ? 1.15 : 1 / 1.15, wheel.clientX - at.left, wheel.clientY - at.top);
  }, { passive: false });
  picture.addEventListener("pointermove", (event) => {
    const { buttons, movementX, movementY, pointerId } = /** @type {PointerEvent} */ (event);
    if (buttons !== 1 || !(movementX || movementY)) return;
    picture.setPointerCapture(pointerId);
    view = { ...view, x: view.x + movementX, y: view.y + movementY };
    move();
  });
  picture.addEventListener("keydown", (event) => {
    const { key, ctrlKey, altKey, metaKey } = /** @type {KeyboardEvent} */ (event);
    if (ctrlKey || altKey || metaKey) return;
    const at = boxes.findIndex((box) => box.row === focus);
    /** @param {number} by */
    const go = (by) => choose(boxes[Math.max(0, Math.min(boxes.length - 1, at + by))].row, true);
    /** @type {Record<string, () => unknown>} */
    const keys = {
      ArrowDown: () => go(1), ArrowRight: () => go(1), ArrowUp: () => go(-1), ArrowLeft: () => go(-1), Home: () => go(-at), End: () => go(boxes.length),
      Enter: () => toggle(focus), Backspace: goUp, "+": () => zoom(1.25, 0, 0), "-": () => zoom(0.8, 0, 0),
    };
    if (!keys[key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[key]();
  });
  openFew();
}

registerView({ key: "boxes", name: VIEW_TEXTS.boxes, mount: mountBoxes, unmount() {}, isAvailable: () => !!state.rows && state.rows.length > 1 });
