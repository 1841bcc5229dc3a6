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

/** @param {string} name */
const directionOf = (name) =>
  /(^|\.)(optimizer|clip_grad)/i.test(name) ? "optimizer" : /\.(backward|parameters_grad)(\.|$)/.test(name) ? "backward" : "forward";

/**
 * What a word of a search asks of a row.
 * @param {string} word @returns {(row: number) => boolean | Promise<boolean>}
 */
function condition(word) {
  const { rows } = state;
  const pattern = /^\/(.+)\/(i?)$/.exec(word);
  if (pattern) {
    const regex = new RegExp(pattern[1], pattern[2]);
    return (row) => regex.test(rows.target(row)) || regex.test(rows.golden(row));
  }
  const bound = /^err(>=?|<=?)([\d.e+-]+)$/i.exec(word);
  if (bound) {
    const limit = Number(bound[2]);
    /** @param {number} error */
    const holds = (error) => (bound[1][0] === ">" ? error > limit : error < limit) || (bound[1].length === 2 && error === limit);
    return (row) => holds(rows.out[row]) || holds(rows.in[row]);
  }
  const [, key, wanted] = /^(shape|dtype|stack):(.+)$/.exec(word.toLowerCase()) || [];
  if (key === "stack") {
    return async (row) => (await rows.stacks(row)).some((lines) => lines.some((line) => frameHas(line, wanted)));
  }
  if (key) {
    const plain = wanted.replace(/\s/g, "");
    return async (row) => {
      for (const [, mine, other] of (await rows.detail(row)).i || []) {
        for (const tensor of [await rows.tensor(mine), await rows.tensor(other)]) {
          if (!tensor) continue;
          if (key === "shape" ? tensor.shape.replace(/\s/g, "") === plain : dtypeIs(tensor.dtype.toLowerCase(), plain)) return true;
        }
      }
      return false;
    };
  }
  const text = word.toLowerCase();
  return (row) => lower(rows.columns.name[row]).includes(text) || (rows.columns.golden ? lower(rows.columns.golden[row]).includes(text) : false);
}

/** Names in small letters, made when first searched. @type {string[]} */
const lowered = [];
/** @param {number} index */
const lower = (index) => (index < 0 ? "" : (lowered[index] ??= state.rows.names[index].toLowerCase()));

/** Whether a line of a stack is of a file and line: `model.py:31`. @param {string} line @param {string} wanted */
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
  const words = filter.query.match(/\/(?:[^/\\]|\\.)+\/i?|shape:[[(][^\])]*[\])]|\S+/g) || [];
  let conditions;
  try {
    conditions = words.map(condition);
  } catch (error) {
    say(fill(TEXTS.badRegex, filter.query));
    return;
  }
  if (!conditions.length) {
    hits = [];
    found = null;
  } else {
    const marks = new Uint8Array(rows.length);
    /** @type {number[]} */
    const list = [];
    for (const row of rows.shown) {
      let all = true;
      for (const holds of conditions) {
        // A promise for each of 100,000 rows takes seconds, so that only words which need it are waited for.
        const answer = holds(row);
        if (!(typeof answer === "boolean" ? answer : await answer)) {
          all = false;
          break;
        }
      }
      if (all) list.push(row), (marks[row] = 1);
    }
    if (mine !== searches || rows !== state.rows) return;
    [hits, found] = [list, marks];
  }
  if (filter.only) applyFilter();
  else drawOutline();
  sayHits();
  writeAddress();
}

function sayHits() {
  const at = hits.indexOf(state.selected);
  byId("hits").textContent = !found ? "" : hits.length ? fill(TEXTS.hits, at < 0 ? "–" : at + 1, hits.length) : TEXTS.noHits;
}

/** Goes to the next or previous hit. @param {number} by 1 or -1 */
function nextHit(by) {
  if (!hits.length) return;
  const { place } = state.rows;
  const here = state.selected < 0 ? -1 : place[state.selected];
  const next = by > 0 ? hits.find((row) => place[row] > here) : hits.findLast((row) => place[row] < here);
  reveal(next ?? hits[by > 0 ? 0 : hits.length - 1]);
  sayHits();
}

/** Whether anything is hidden. */
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
        (!filter.only || !found || found[row] === 1);
      passed[row + 1] = passed[row] + (passes ? 1 : 0);
    }
  }
  byId("count").textContent = passed ? fill(TEXTS.filtered, passed[rows.length], rows.length) : "";
  byId("range").textContent = filter.from < 0 ? "" : fill(TEXTS.range, filter.from, filter.to);
  if (passed && passed[rows.length] < 5000) openToPassed();
  layOut();
  drawPlot();
  writeAddress();
}
