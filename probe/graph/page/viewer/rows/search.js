// Which rows a search finds, and which rows the filters leave.

const filter = {
  /** Statuses that are hidden. @type {Set<number>} */ hide: new Set(),
  kind: "", direction: "", level: "", reason: "", side: "", micro: "",
  /** The first and last call of the range; -1 without one. */ from: -1, to: -1,
  query: "", only: false,
};
/** Keys that are chosen from a list. */
const CHOICES = /** @type {const} */ (["kind", "direction", "level", "reason", "side", "micro"]);

/** The rows that were found, as they are shown. @type {number[]} */
let hits = [];
/** 1 for each row that was found; null without a search. @type {Uint8Array | null} */
let found = null;
/** How many rows before each row pass the filters; null where all do. @type {Uint32Array | null} */
let passed = null;
let searches = 0;
/** What `hits` are hits of. */
let searched = "";
/** Why the search cannot be made, and what is allowed. */
let badSearch = "";

/** @param {string} name */
const directionOf = (name) =>
  /(^|\.)(optimizer|clip_grad)/i.test(name) ? "optimizer" : /\.(backward|parameters_grad)(\.|$)/.test(name) ? "backward" : "forward";

/**
 * What a word of a search asks of a row. Texts, stacks and tensors are decided once each, not for each row that has them.
 * @param {string} word @returns {Promise<(row: number) => unknown>}
 */
async function condition(word) {
  const { rows } = state;
  const { name, golden, stack, golden_stack, tensors, types } = rows.columns;
  const pattern = /^\/(.+)\/(i?)$/.exec(word);
  const bound = /^err\s*([<>]=?)\s*(.*)$/i.exec(word);
  const [, key, wanted] = /^([a-z_]+):(.*)$/.exec(word.toLowerCase()) || [];
  if (bound) {
    const limit = Number(bound[2] || NaN);
    if (Number.isNaN(limit)) throw new Error(word);
    /** @param {number} error */
    const holds = (error) => (bound[1][0] === ">" ? error > limit : error < limit) || (bound[1].length === 2 && error === limit);
    return (row) => holds(rows.out[row]) || holds(rows.in[row]);
  }
  if (!pattern && key) {
    const plain = wanted.replace(/\s/g, "");
    if (!plain || !["shape", "dtype", "stack"].includes(key)) throw new Error(word);
    if (key === "stack") {
      const [stacks, frames] = await Promise.all([block("stacks"), block("frames")]);
      const isIn = frames.map((/** @type {string} */ line) => frameHas(line, wanted));
      const holds = stacks.map((/** @type {number[]} */ one) => one.some((frame) => isIn[frame]));
      return (row) => holds[stack[row]] || (golden_stack && holds[golden_stack[row]]);
    }
    const holds = types.map((items) => items.some(([, dtype, shape]) =>
      key === "shape" ? rows.names[shape].replace(/\s/g, "") === plain : dtypeIs(rows.names[dtype].toLowerCase(), plain)));
    return (row) => holds[tensors[row]];
  }
  const regex = pattern && new RegExp(pattern[1], pattern[2]);
  const text = word.toLowerCase();
  /** @type {(boolean | undefined)[]} */
  const known = [];
  /** @param {number} index */
  const holds = (index) => index >= 0 && (known[index] ??= regex ? regex.test(rows.names[index]) : lower(index).includes(text));
  const inItems = types.map((items) => items.some(([item]) => holds(item)));
  const makers = await rows.makers();
  /** @param {number} row */
  const inParameters = (row) => makers[row] && makers[row].flat().some((maker) => maker < 0 && !rows.names[-1 - maker].startsWith("data:") && holds(-1 - maker));
  const functions = new Set(Object.entries(state.manifest.arguments ?? {}).filter(([, names]) => names.some((one) => (regex ? regex.test(one) : one.includes(text)))).map(([function_]) => function_));
  return (row) => holds(name[row]) || (golden && holds(golden[row])) || inItems[tensors[row]] || inParameters(row) || (functions.size > 0 && functions.has(rows.target(row).replace(/\.\d+\.forward$/, "")));
}

/** True if the search asks for an item, by its name or that of the argument. @param {string} item @param {string} argument */
const isSought = (item, argument) => filter.query.toLowerCase().split(/\s+/).some((word) => word && `${item} ${argument}`.toLowerCase().includes(word));

/** Names in small letters, made when first searched. @type {string[]} */
const lowered = [];
/** @param {number} index */
const lower = (index) => (index < 0 ? "" : (lowered[index] ??= state.rows.names[index].toLowerCase()));

/** True if a line of a stack is of a file and line: `model.py:31`. @param {string} line @param {string} wanted */
function frameHas(line, wanted) {
  const text = line.toLowerCase();
  const [, file, number] = /^(.*):(\d+)$/.exec(wanted) || [];
  return text.includes(wanted) || (!!file && text.includes(file) && new RegExp(`(line |:)${number}\\b`).test(text));
}

/** `bf16` is `torch.bfloat16`. @param {string} dtype @param {string} wanted */
const dtypeIs = (dtype, wanted) =>
  dtype.includes(wanted.replace(/^bf(?=\d)/, "bfloat").replace(/^(fp|f)(?=\d)/, "float").replace(/^i(?=\d)/, "int")) &&
  (wanted.includes("bf") || !dtype.includes("bfloat") || !/^(fp|f|float)\d/.test(wanted));

/** Finds the rows of a search; the last one that was asked for counts. */
async function search() {
  const mine = ++searches;
  const { rows } = state;
  const { query } = filter;
  const words = query.match(/(?<!\S)err\s*[<>]=?\s*\S*|\/(?:[^/\\]|\\.)+\/i?|shape:[[(][^\])]*[\])]|\S+/g) || [];
  /** @type {number[]} */
  let list = [];
  let marks = null;
  let wrong = "";
  try {
    const conditions = await Promise.all(words.map(condition));
    if (conditions.length) {
      list = Array.from(rows.shown).filter((row) => conditions.every((holds) => holds(row)));
      marks = new Uint8Array(rows.length);
      for (const row of list) marks[row] = 1;
    }
  } catch (error) {
    wrong = fill(TEXTS.badSearch, error instanceof Error ? error.message : String(error));
  }
  if (mine !== searches || rows !== state.rows) return;
  [hits, found, searched, badSearch] = [list, marks, query, wrong];
  if (filter.only) applyFilter();
  else drawOutline();
  sayHits();
  writeAddress();
}

function sayHits() {
  const at = hits.indexOf(state.selected);
  byId("hits").textContent = !found ? badSearch : hits.length ? fill(TEXTS.hits, at < 0 ? "–" : at + 1, hits.length) : TEXTS.noHits;
}

/** Goes to the next or previous hit. @param {number} by 1 or -1 */
async function nextHit(by) {
  if (searched !== filter.query) await search();
  if (!hits.length || searched !== filter.query) return;
  const { place } = state.rows;
  const here = state.selected < 0 ? -1 : place[state.selected];
  const next = by > 0 ? hits.find((row) => place[row] > here) : hits.findLast((row) => place[row] < here);
  reveal(next ?? hits[by > 0 ? 0 : hits.length - 1]);
  sayHits();
}

/** True if anything is hidden. */
const isFiltered = () =>
  filter.hide.size > 0 || filter.from >= 0 || (filter.only && found !== null) || CHOICES.some((key) => filter[key] !== "");

/** Finds which rows pass the filters, and shows them. */
function applyFilter() {
  const { rows } = state;
  passed = null;
  if (isFiltered()) {
    const { columns } = rows;
    const { hide, from, to, kind, level, reason, micro, direction, side } = filter;
    passed = new Uint32Array(rows.length + 1);
    for (let row = 0; row < rows.length; row++) {
      const passes =
        !hide.has(columns.status[row]) &&
        (from < 0 || (row >= from && row <= to)) &&
        (kind === "" || columns.kind[row] === +kind) &&
        (level === "" || columns.level[row] === +level || columns.golden_level?.[row] === +level) &&
        (reason === "" || columns.reason[row] === +reason) &&
        (micro === "" || !columns.micro || columns.micro[row] === +micro) &&
        (direction === "" || directionOf(rows.name(row)) === direction) &&
        (side === "" || (side === "target") === !rows.golden(row) && (side === "golden") === !rows.target(row)) &&
        (!filter.only || !found || found[row] === 1 || row === state.selected);
      passed[row + 1] = passed[row] + (passes ? 1 : 0);
    }
  }
  byId("clear").hidden = !isFiltered() && !filter.only;
  byId("count").textContent = passed ? fill(TEXTS.filtered, passed[rows.length], rows.length) : "";
  byId("range").textContent = filter.from < 0 ? "" : fill(TEXTS.range, filter.from, filter.to);
  if (passed && passed[rows.length] < 5000) openToPassed();
  layOut();
  keepSelection();
  drawPlot();
  writeAddress();
}

/** Chooses the nearest row that passes the filters where the chosen one is hidden: keys go on from a row that is seen. */
function keepSelection() {
  const { rows, selected } = state;
  if (selected < 0 || !passed || !passed[rows.length] || passed[selected + 1] > passed[rows.first[selected]]) return;
  let [before, after] = [selected, selected];
  while (before >= 0 && !passes(before)) before--;
  while (after < rows.length && !passes(after)) after++;
  select(before < 0 || (after < rows.length && after - selected <= selected - before) ? after : before);
}
