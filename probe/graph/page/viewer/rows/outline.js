// The rows as an outline: only those in sight are elements.

const ROW = 22;
/** Browsers limit the height of an element; with more rows than this the place of the scroll bar is mapped. */
// Not a constant, so that a test need not make a million rows.
let MOST_ROWS = 700000;

/** 1 for each row that shows what is inside. */
let opened = new Uint8Array(0);
/** The rows that are shown, from the top. */
let lines = new Int32Array(0);
let lineCount = 0;
let drawing = 0;

const scroller = () => byId("scroll");
const spaceHeight = () => Math.min(lineCount, MOST_ROWS) * ROW;

/** The line at the top, also between two. */
function topLine() {
  const box = scroller();
  if (lineCount <= MOST_ROWS) return box.scrollTop / ROW;
  const most = spaceHeight() - box.clientHeight;
  return most <= 0 ? 0 : (box.scrollTop / most) * (lineCount - box.clientHeight / ROW);
}

/** @param {number} line */
function scrollToLine(line) {
  const box = scroller();
  const most = spaceHeight() - box.clientHeight;
  box.scrollTop = lineCount <= MOST_ROWS ? line * ROW : (line / (lineCount - box.clientHeight / ROW)) * most;
}

/** Makes the list of lines from what is open and what passes the filters. */
function layOut() {
  const { rows } = state;
  const { shown, first } = rows;
  if (lines.length < rows.length) lines = new Int32Array(rows.length);
  lineCount = 0;
  folds = new Map();
  for (let at = 0; at < rows.length; ) {
    const row = shown[at];
    const inside = row - first[row] + 1;
    if (passed && passed[row + 1] === passed[first[row]]) {
      at += inside;
      continue;
    }
    const layers = passed || found ? [] : layersFrom(at, rows.length);
    lines[lineCount++] = row;
    if (layers.length) {
      folds.set(row, layers);
      for (const layer of layers) at += layer - first[layer] + 1;
      continue;
    }
    at += opened[row] ? 1 : inside;
  }
  byId("space").style.height = `${spaceHeight()}px`;
  drawOutline();
}

/** Where a row is among the lines; -1 where it is hidden. @param {number} row */
function lineOf(row) {
  const { place } = state.rows;
  let [low, high] = [0, lineCount - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (lines[middle] === row) return middle;
    if (place[lines[middle]] < place[row]) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}

/** Opens what is around a row, chooses it and brings it into sight. @param {number} row */
function reveal(row) {
  if (row < 0 || row === undefined) return;
  unfoldAround(row);
  for (const up of state.rows.above(row)) opened[up] = 1;
  if (state.view !== "outline") show("outline");
  if (passed && passed[row + 1] === passed[state.rows.first[row]]) clearFilter();
  layOut();
  select(row);
}

/** Opens modules down to a level; everything from 400 on. @param {number} level */
function openTo(level) {
  const { depth, length } = state.rows;
  for (let row = 0; row < length; row++) opened[row] = depth[row] < level ? 1 : 0;
  layOut();
  intoSight();
}

/** Opens what has a problem inside, and closes the rest. */
function openProblems() {
  const { rows } = state;
  opened.fill(0);
  opened[rows.length - 1] = 1;
  rows.status.forEach((status, row) => {
    if (!state.manifest.statuses[status].problem) return;
    for (let up = rows.parent[row]; up >= 0 && !opened[up]; up = rows.parent[up]) opened[up] = 1;
  });
  layOut();
  intoSight();
}

function openToPassed() {
  const { rows } = state;
  if (!passed) return;
  for (let row = 0; row < rows.length; row++) if (passed[row] - passed[rows.first[row]] > 0) opened[row] = 1;
}

/** @param {number} row @param {boolean} open */
function setOpen(row, open) {
  if (folds.has(row)) return unfold(row);
  if (!state.rows.hasInside(row)) return;
  opened[row] = open ? 1 : 0;
  layOut();
}

function intoSight() {
  let row = state.selected;
  while (row >= 0 && lineOf(row) < 0) row = state.rows.parent[row];
  const line = lineOf(row);
  const high = Math.max(1, Math.floor(scroller().clientHeight / ROW));
  const top = topLine();
  if (line >= 0 && (line < top + 1 || line > top + high - 2)) scrollToLine(Math.max(0, line - Math.floor(high / 3)));
  drawOutline();
}

/** The name in two parts: what says where it is is left out, because the rows around it say that. @param {string} name @param {string} parent */
function nameParts(name, parent) {
  const parts = name.split(".");
  const above = parent.split(".");
  let same = 0;
  while (same < parts.length - 3 && parts[same] === above[same]) same++;
  if (!same && /^(Module|Cell)$/.test(parts[0])) same = 1;
  // The class, the direction and the number of the call are read last.
  const tail = /^(Module|Cell)$/.test(parts[0]) ? (/^\d+$/.test(parts[parts.length - 1]) ? 3 : 1) : 0;
  const cut = Math.max(same + 1, parts.length - tail);
  return [parts.slice(same, cut).join("."), parts.slice(cut).join(".")];
}

/** What is inside of a closed row: each problem, else the worst status, and how often. @param {number} row @returns {[number, number][]} */
function insideOf(row) {
  const { rows } = state;
  const { statuses } = state.manifest;
  if (!rows.hasInside(row) || opened[row] || rows.columns.golden === 0) return [];
  const worst = rows.worst[row];
  const isWanted = statuses.map((one, status) => one.problem || (status === worst && worst > rows.status[row]));
  return statuses.map((_, status) => /** @type {[number, number]} */ ([status, isWanted[status] ? rows.count(row, status) - (rows.status[row] === status ? 1 : 0) : 0])).filter(([, count]) => count);
}

/** @param {number} row @param {string} name @param {string} around @param {boolean} lead */
function nameCell(row, name, around, lead) {
  const { rows } = state;
  const indent = `--d:${Math.min(rows.depth[row], 30)}`;
  if (!name) return el("span", { class: "name none", style: indent, "aria-label": TEXTS.missing });
  const [strong, weak] = nameParts(name, around);
  const cell = el("span", { class: "name", style: indent });
  if (lead || !rows.target(row)) {
    const inside = rows.hasInside(row);
    cell.append(el("i", { class: inside ? "twist" : "leaf", "aria-hidden": "true" }, inside ? (opened[row] ? "▾" : "▸") : ""));
    // A letter may be a digit: the number stands outside of its box.
    for (const [status, count] of insideOf(row)) cell.append(badge(status), el("small", { class: `count ${tone(status)}` }, `×${count}`));
  } else cell.append(el("i", { class: "leaf" }));
  const level = state.manifest.levels[(lead ? rows.columns.level : rows.columns.golden_level)?.[row] || 0];
  if (level) cell.append(el("em", { class: `level${row === (lead ? rows.info.nonfinite : rows.info.golden_nonfinite) ? " first" : ""}` }, level));
  cell.append(lead ? edgeMark(row) : "", el("b", {}, ...nameText(strong)), weak && el("small", {}, weak));
  return cell;
}

/** True if an input or a parameter is what shows the divergence of a row. @param {number} row */
function isJudgedByInput(row) {
  const { first, suspects, judged } = state.rows.info;
  const at = row === first ? 0 : suspects.indexOf(row) + 1;
  const item = row === first || at > 0 ? judged?.[at] : "";
  return !!item && !item.startsWith("output");
}

/** How far inputs or outputs are apart; those that are judged are marked. @param {number} row @param {number} value @param {boolean} isJudged @param {boolean} [isOther] a plain argument differs besides */
function errorCell(row, value, isJudged, isOther) {
  const status = state.rows.status[row];
  return el("span", { class: `num${isJudged && state.manifest.statuses[status].problem ? ` ${tone(status)}` : ""}`, style: distanceStyle(state.rows.info, value), title: isOther ? TEXTS.otherArgument : null },
    isOther && el("em", {}, TEXTS.argument), shortNumber(value));
}

/** @param {number} row @param {number} line */
function rowElement(row, line) {
  const { rows } = state;
  const { statuses, reasons } = state.manifest;
  const [target, golden, up] = [rows.target(row), rows.golden(row), rows.parent[row]];
  const status = rows.status[row];
  const dim = passed && passed[row + 1] === passed[row];
  const reason = reasons[rows.columns.reason[row]];
  const two = rows.columns.golden !== 0;
  const layers = folds.get(row);
  const made = el(
    "div",
    {
      id: `r${row}`, role: "treeitem", "aria-level": rows.depth[row] + 1, "aria-selected": String(row === state.selected),
      "aria-expanded": rows.hasInside(row) ? String(!!opened[row]) : null, "data-node": rows.name(row), "data-row": row,
      "aria-label": layers ? fill(TEXTS.foldedLayers, layers.length) : [rows.name(row), statuses[status].name, ...insideOf(row).map(([one, count]) => fill(TEXTS.inside, count, statuses[one].name))].filter(Boolean).join(", "),
      class: `row${dim ? " dim" : ""}${found?.[row] ? " hit" : ""}${row === rows.info.first ? " first" : ""} ${manualMark(rows.k, row)}`,
      title: layers ? fill(TEXTS.foldedLayers, layers.length) : [target, two && (golden || TEXTS.missing), two && (reason ? fill(TEXTS.pairedBy, reason) : TEXTS.alone)].filter(Boolean).join("\n"),
    },
    badge(layers ? rows.worst[row] : status), layers ? foldCell(row) : nameCell(row, target, up < 0 ? "" : rows.target(up), true)
  );
  if (layers) {
    made.style.top = `${line * ROW}px`;
    return made;
  }
  if (two) {
    made.append(
      errorCell(row, rows.in[row], isJudgedByInput(row), rows.others.has(row)), errorCell(row, rows.out[row], !isJudgedByInput(row)),
      nameCell(row, golden, up < 0 ? "" : rows.golden(up), false)
    );
  }
  made.style.top = `${line * ROW}px`;
  return made;
}

/** Draws the lines in sight with the next frame. */
function drawOutline() {
  if (!drawing) drawing = requestAnimationFrame(drawNow);
}

function drawNow() {
  drawing = 0;
  if (!state.rows || byId("outline").hidden) return;
  const box = scroller();
  const top = topLine();
  const from = Math.max(0, Math.floor(top) - 4);
  const to = Math.min(lineCount, Math.ceil(top + box.clientHeight / ROW) + 4);
  const layer = byId("lines");
  layer.style.transform = `translateY(${box.scrollTop - (top - from) * ROW}px)`;
  layer.replaceChildren(...Array.from(lines.subarray(from, to), (row, at) => rowElement(row, at)));
  box.setAttribute("aria-activedescendant", `r${state.selected}`);
}

/** Walks from line to line. @param {number} by */
function walk(by) {
  const line = lineOf(state.selected);
  select(lines[Math.max(0, Math.min(lineCount - 1, line < 0 ? 0 : line + by))]);
}

/** @param {KeyboardEvent} event */
function outlineKey(event) {
  const { rows, selected } = state;
  const page = Math.max(1, Math.floor(scroller().clientHeight / ROW) - 1);
  /** @type {Record<string, () => void>} */
  const keys = {
    ArrowDown: () => walk(1), ArrowUp: () => walk(-1), PageDown: () => walk(page), PageUp: () => walk(-page),
    Home: () => walk(-lineCount), End: () => walk(lineCount),
    ArrowRight: () => (folds.has(selected) ? unfold(selected) : rows.hasInside(selected) && !opened[selected] ? setOpen(selected, true) : walk(1)),
    ArrowLeft: () => (opened[selected] && rows.hasInside(selected) ? setOpen(selected, false) : select(rows.parent[selected])),
    " ": () => setOpen(selected, !opened[selected]), Enter: () => setOpen(selected, !opened[selected]),
  };
  if (!keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  keys[event.key]();
}

function makeOutline() {
  const made = el(
    "section", { id: "outline" },
    el("nav", { id: "strip", hidden: true }),
    el("div", { class: "row titles" }, el("span"), el("span", {}, TEXTS.target), el("span", { class: "num in" }, TEXTS.in), el("span", { class: "num" }, TEXTS.out), el("span", {}, makeColumnBar(), TEXTS.golden)),
    el("div", { id: "scroll", role: "tree", tabindex: "0", "aria-label": TEXTS.outline, onscroll: drawOutline, onkeydown: outlineKey }, el("div", { id: "space" }, el("div", { id: "lines", role: "presentation" })))
  );
  made.addEventListener("click", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const row = Number(target.closest("[data-row]")?.getAttribute("data-row") ?? -1);
    if (row < 0) return;
    if (target.classList.contains("twist") || event.detail === 2) setOpen(row, !opened[row]);
    select(row);
  });
  return made;
}

/** Opens a comparison where it matters: everything around its problems where they are few, else around the first ones. */
function openFirst() {
  const { rows } = state;
  const { first, suspects } = rows.info;
  opened = new Uint8Array(rows.length);
  unfolded = new Set();
  opened[rows.length - 1] = 1;
  for (const row of first === null ? [] : [first, ...suspects]) for (const up of rows.above(row)) opened[up] = 1;
  if (first === null) for (let row = 0; row < rows.length; row++) opened[row] = rows.depth[row] < 2 ? 1 : 0;
  else if (rows.problems(rows.length - 1) < 200) openProblems();
  document.body.classList.toggle("alone", rows.columns.golden === 0);
  document.body.classList.toggle("levels", rows.columns.level.some((one) => one >= FIRST_LEVEL));
  scroller().scrollTop = 0;
  applyFilter();
}

/** Opens what is around a chosen row, where it is hidden by that alone. @param {number} row */
function intoSightOf(row) {
  if (lineOf(row) < 0) {
    unfoldAround(row);
    for (const up of state.rows.above(row)) opened[up] = 1;
    layOut();
  }
  intoSight();
}
