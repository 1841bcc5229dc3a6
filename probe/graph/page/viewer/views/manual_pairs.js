// Pairs made by hand: kept, shown, and exported for the next run; nothing on the page is judged anew.

/**
 * @typedef {{k: number, target: number, golden: number, entry: {target: string, golden: string, descendants: boolean,
 *   step: number | null, rank: number | null, run?: string}}} ManualPair rows of both sides, and what `--pairs` reads
 */

/** @type {ManualPair[]} */
let manualPairs = [];
/** What `manualPairs` was before each change. @type {ManualPair[][]} */
const pairsBefore = [];
/** The row of the target that waits for its partner. */
let markedTarget = { k: -1, row: -1 };
let drawPairs = () => {};

/** What the outline shows of a row that a hand-made pair holds; "" of others. @param {number} k @param {number} row */
function manualMark(k, row) {
  if (markedTarget.k === k && markedTarget.row === row) return "marked";
  const isIn = manualPairs.some((one) => one.k === k && [one.target, one.golden].some((side) => row <= side && row >= (one.entry.descendants ? state.rows.first[side] : side)));
  return isIn ? "by-hand" : "";
}

/** @param {ManualPair[]} pairs @param {string} text */
function setPairs(pairs, text) {
  pairsBefore.push(manualPairs);
  manualPairs = pairs;
  markedTarget = { k: -1, row: -1 };
  say(text);
  drawPairs();
  drawOutline();
}

function undoPairs() {
  manualPairs = pairsBefore.pop() ?? manualPairs;
  drawPairs();
  drawOutline();
}

/** @param {number} row */
function markTarget(row) {
  const name = state.rows.target(row);
  if (!name) return say(VIEW_TEXTS.noTarget);
  markedTarget = { k: state.rows.k, row };
  say(fill(VIEW_TEXTS.marked, name));
  drawPairs();
  drawOutline();
}

let pairDescendants = true;

/** @param {number} row */
function pairWith(row) {
  const { rows } = state;
  const { k, row: target } = markedTarget;
  if (k !== rows.k) return say(VIEW_TEXTS.unmarked);
  if (!rows.golden(row)) return say(VIEW_TEXTS.noGolden);
  // What is inside of the golden run's module may stand in other rows of this page: what a call is says whether it has an inside.
  const descendants = pairDescendants && [target, row].every((one) => rows.columns.kind[one] !== 1);
  const others = manualPairs.filter((one) => one.k !== k || (one.target !== target && one.golden !== row));
  const replaced = others.length < manualPairs.length ? ` ${VIEW_TEXTS.replaced}` : "";
  const { step, rank, run } = rows.info;
  const entry = { target: rows.target(target), golden: rows.golden(row), descendants, step, rank, ...(run ? { run } : {}) };
  setPairs([...others, { k, target, golden: row, entry }], fill(VIEW_TEXTS.paired, rows.target(target), rows.golden(row)) + replaced);
}

/** Saves what `--pairs` reads. */
function exportPairs() {
  download("pairs.json", `[\n ${manualPairs.map(({ entry }) => JSON.stringify(entry)).join(",\n ")}\n]\n`, "application/json");
}

/** @param {HTMLElement} container */
function mountPairs(container) {
  const { rows } = state;
  const all = rows.status.map((_, row) => row);
  /** @param {string} side @param {(row: number) => string} name @param {(row: number) => string} other @param {(row: number) => void} act */
  function half(side, name, other, act) {
    const alone = all.filter((row) => name(row) && !other(row)).sort((a, b) => rows.place[a] - rows.place[b]);
    const list = longList(side, (line) => {
      const row = alone[line];
      const [strong, weak] = nameParts(name(row), name(rows.parent[row]));
      return el("div", { class: `row-pair ${manualMark(rows.k, row)}`, "data-node": name(row), "data-row": row, title: name(row), style: `--d:${Math.min(rows.depth[row], 30)}` }, badge(rows.status[row]), el("span", { class: "name" }, el("b", {}, strong), el("small", {}, weak)));
    }, (line) => act(alone[line]));
    list.box.dataset.side = side;
    return { list, made: el("section", {}, el("h2", {}, `${side} (${alone.length})`), list.box), length: alone.length };
  }
  const halves = [
    half(TEXTS.sides.target, (row) => rows.target(row), (row) => rows.golden(row), markTarget),
    half(TEXTS.sides.golden, (row) => rows.golden(row), (row) => rows.target(row), pairWith),
  ];
  const box = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", checked: pairDescendants, onchange: () => (pairDescendants = box.checked) }));
  const undo = button(VIEW_TEXTS.undo, undoPairs);
  const save = button(VIEW_TEXTS.exportPairs, exportPairs, { class: "strong" });
  const made = el("ul", { class: "pairs" });
  container.append(
    el("div", { class: "tools", role: "toolbar" }, el("label", {}, box, ` ${VIEW_TEXTS.descendants}`), undo, save), el("p", { class: "hint" }, VIEW_TEXTS.anew),
    el("div", { class: "halves" }, ...halves.map((one) => one.made)), made);
  for (const one of halves) one.list.reset(one.length);
  drawPairs = () => {
    for (const one of halves) one.list.draw();
    /** @type {HTMLButtonElement} */ (undo).disabled = !pairsBefore.length;
    /** @type {HTMLButtonElement} */ (save).disabled = !manualPairs.length;
    const here = manualPairs.filter((one) => one.k === rows.k);
    made.replaceChildren(...here.map((pair) => {
      const names = `${rows.target(pair.target)} ↔ ${rows.golden(pair.golden)}`;
      return el("li", {}, button(VIEW_TEXTS.unpair, () => setPairs(manualPairs.filter((one) => one !== pair), VIEW_TEXTS.unpair), { "aria-label": `${VIEW_TEXTS.unpair} ${names}` }),
        ` ${names}${pair.entry.descendants ? `, ${VIEW_TEXTS.descendants}` : ""}`);
    }));
    if (!here.length) made.append(el("li", {}, VIEW_TEXTS.noPairs));
  };
  drawPairs();
}

registerView({ key: "pairs", name: VIEW_TEXTS.pairs, mount: mountPairs, unmount: () => void (drawPairs = () => {}), isAvailable: () => !!state.rows?.columns.golden });
registerAction({ key: "m", name: VIEW_TEXTS.markTarget, run: () => state.rows.columns.golden && markTarget(state.selected) });
registerAction({ key: "g", name: VIEW_TEXTS.markGolden, run: () => state.rows.columns.golden && pairWith(state.selected) });
registerAction({ key: "u", name: VIEW_TEXTS.undo, run: undoPairs });
