// The data of the page: blocks are found, unpacked and given names. docs/development/graph-page.md says what they hold.

/**
 * @typedef {{path: string, framework: string, task: string | null, level: string | null, nodes: number}} Side
 * @typedef {{key: string, letter: string, name: string, hint: string, colour: string, problem: boolean}} Status
 * @typedef {{target: Side, golden: Side | null, run: string, step: number | null, rank: number | null, place: string, mode: string, measured?: boolean,
 *   verdict: string[], answer?: "divergence" | "none" | "cannot_tell" | null, follows?: boolean, first: number | null, chain: number[], suspects: number[], nonfinite: number | null, golden_nonfinite?: number | null,
 *   worst: number, counts: number[], micro_steps: number, notes: string[], rows: number, tensors: number,
 *   card?: Card | null, judged?: string[], partial?: boolean, roots?: [string, string], first_name?: string}} Comparison
 * @typedef {{format: number, tool: string, title: string, rules: string, statuses: Status[], reasons: string[],
 *   levels: string[], metrics: string[], files: number, blocks?: Record<string, number>, unpaired: string[], arguments?: Record<string, string[]>, said?: string[], first?: number | null,
 *   comparisons: Comparison[]}} Manifest
 * @typedef {number | "nan" | "inf" | "-inf" | "differs" | null} Cell
 * @typedef {{outside: string[], hints: string[], cause?: string, effect?: string, lines?: [string, string], item?: string, found?: number | null, allowed?: number | null}} Card
 * @typedef {[number, number, number, Cell, Cell[] | 0, number, string, Cell]} Item
 *   name, tensor of each side, difference, metrics, status, note, the part of the difference that inputs and rounding explain
 * @typedef {{i?: Item[], why?: string, cause?: string, merged?: string[], parts?: [string, number, number][],
 *   partners?: [number, number, string][]}} Detail
 * @typedef {{dtype: string, shape: string, grad: number, max: Cell, min: Cell, mean: Cell, norm: Cell,
 *   excluded: number, sum: string | null, value: string | null}} Tensor
 * @typedef {{name: number[], golden: number[] | 0, parent: number[], kind: number[], status: number[],
 *   reason: number[], level: number[], golden_level: number[], in: Cell[], out: Cell[], arguments: number[], micro: number[] | 0,
 *   stack: number[], golden_stack: number[] | 0, has: number[], tensors: number[], types: [number, number, number][][]}} Columns
 * @typedef {number | [number, number]} Maker  of what a call takes: so many rows before it; less than 0 a text; of both sides where it is not the same
 */

const FORMAT = 1;
/** Stands for a difference that has no size, such as that of two checksums: above all that have one. */
const DIFFERS = 1e30;
const DETAILS = 512;
const TENSORS = 8192;

/** Blocks that were asked for: what they hold, or will hold. @type {Map<string, Promise<any>>} */
const blocks = new Map();
/** Texts of blocks that a file brought, until they are unpacked. @type {Map<string, string>} */
const delivered = new Map();
/** @type {Map<number, Promise<void>>} */
const files = new Map();

/** Called by the files beside the page. @param {string} id @param {string} text */
function probeBlock(id, text) {
  delivered.set(id, text);
}

/** @returns {Manifest} */
function readManifest() {
  const found = JSON.parse(document.getElementById("manifest")?.textContent || "null");
  if (!found) throw new Error(TEXTS.noData);
  if (found.format !== FORMAT) throw new Error(fill(TEXTS.otherFormat, found.format, FORMAT));
  return found;
}

/** @param {number} file @returns {Promise<void>} */
function loadFile(file) {
  let loading = files.get(file);
  if (!loading) {
    loading = new Promise((done, fail) => {
      const script = document.createElement("script");
      script.src = `block${file}.js`;
      script.onload = () => done();
      script.onerror = () => fail(new Error(fill(TEXTS.noFile, script.src)));
      document.head.append(script);
    });
    files.set(file, loading);
  }
  return loading;
}

/** @param {string} id @returns {Promise<any>} */
async function unpack(id) {
  const file = state.manifest.blocks?.[id];
  if (file !== undefined && !document.getElementById(id)) await loadFile(file);
  const text = delivered.get(id) ?? document.getElementById(id)?.textContent;
  if (text === undefined || text === null) throw new Error(fill(TEXTS.noBlock, id));
  delivered.delete(id);
  return unpacked(text).json();
}

/** What a block holds; each is unpacked once. @param {string} id @returns {Promise<any>} */
function block(id) {
  let found = blocks.get(id);
  if (!found) blocks.set(id, (found = unpack(id)));
  return found;
}

/** True if the page has a block. @param {string} id */
const hasBlock = (id) => !!document.getElementById(id) || state.manifest.blocks?.[id] !== undefined;

/** A number for comparing: NaN where there is none. @param {Cell | undefined} cell */
const numeric = (cell) =>
  cell === null || cell === undefined || cell === "nan" ? NaN : cell === "inf" ? Infinity : cell === "-inf" ? -Infinity : cell === "differs" ? DIFFERS : cell;

/**
 * The rows of one comparison. Rows stand in order of execution, a module behind everything inside of it: the rows inside
 * of row `i` are `first[i]` to `i - 1`.
 */
class Rows {
  /** @param {number} k @param {Columns} columns @param {string[]} names */
  constructor(k, columns, names) {
    this.k = k;
    this.columns = columns;
    this.names = names;
    this.info = state.manifest.comparisons[k];
    const n = (this.length = columns.parent.length);
    /** Row of the parent; -1 of the root. */
    this.parent = new Int32Array(n);
    /** The first row of the subtree. */
    this.first = new Int32Array(n);
    this.depth = new Uint16Array(n);
    /** The rows as they are shown: a module above what is inside of it. */
    this.shown = new Int32Array(n);
    /** The place of each row in `shown`. */
    this.place = new Int32Array(n);
    /** The worst status inside, the row's own included. */
    this.worst = Uint8Array.from(columns.status);
    this.status = columns.status;
    this.in = Float64Array.from(columns.in, numeric);
    this.out = Float64Array.from(columns.out, numeric);
    /** The rows of calls that take a plain argument of another value. */
    this.others = new Set(columns.arguments);
    /** How many rows before each row have a status, a list for each status. */
    this.before = state.manifest.statuses.map(() => new Uint32Array(n + 1));
    const { parent, first, depth, shown, place, worst, before } = this;
    first.fill(n);
    for (let row = 0; row < n; row++) {
      if (first[row] === n) first[row] = row;
      const up = columns.parent[row] ? row + columns.parent[row] : -1;
      parent[row] = up;
      if (up < 0) continue;
      if (first[up] === n) first[up] = first[row];
      if (worst[row] > worst[up]) worst[up] = worst[row];
    }
    for (let row = n - 1; row >= 0; row--) {
      depth[row] = parent[row] < 0 ? 0 : depth[parent[row]] + 1;
      // Everything that ended before the subtree began stands above it, and so do the modules around it.
      place[row] = first[row] + depth[row];
      shown[place[row]] = row;
    }
    before.forEach((sums, status) => {
      for (let row = 0; row < n; row++) sums[row + 1] = sums[row] + (columns.status[row] === status ? 1 : 0);
    });
  }

  /** @param {number} row @returns {string} "" where this side has no such node */
  target(row) {
    return this.names[this.columns.name[row]] ?? "";
  }

  /** @param {number} row @returns {string} */
  golden(row) {
    return this.columns.golden ? this.names[this.columns.golden[row]] ?? "" : "";
  }

  /** The name that a row goes by. @param {number} row */
  name(row) {
    return this.target(row) || this.golden(row);
  }

  /** How many rows inside of a row, itself included, have a status. @param {number} row @param {number} status */
  count(row, status) {
    return this.before[status][row + 1] - this.before[status][this.first[row]];
  }

  /** How many problems are inside of a row, itself included. @param {number} row */
  problems(row) {
    return state.manifest.statuses.reduce((sum, one, status) => sum + (one.problem ? this.count(row, status) : 0), 0);
  }

  /** True if a row has others inside. @param {number} row */
  hasInside(row) {
    return this.first[row] < row;
  }

  /** The rows directly inside, in order. @param {number} row @returns {number[]} */
  children(row) {
    const found = [];
    for (let child = row - 1; child >= this.first[row]; child = this.first[child] - 1) found.push(child);
    return found.reverse();
  }

  /** The rows around a row, innermost first. @param {number} row @returns {number[]} */
  above(row) {
    const found = [];
    for (let up = this.parent[row]; up >= 0; up = this.parent[up]) found.push(up);
    return found;
  }

  /** The row of a node, by the name that either side has for it; -1 where there is none. @param {string} name */
  find(name) {
    const index = this.names.indexOf(name);
    if (index < 0) return -1;
    const row = this.columns.name.indexOf(index);
    return row < 0 && this.columns.golden ? this.columns.golden.indexOf(index) : row;
  }

  /** @param {number} row @returns {Promise<Detail>} */
  async detail(row) {
    const found = await block(`c${this.k}d${Math.floor(row / DETAILS)}`);
    return found[row % DETAILS] || {};
  }

  /** Who made the items of each row, in the order of its details; nothing where the runs have not recorded it. @returns {Promise<(Maker[] | 0)[]>} */
  makers() {
    const id = `c${this.k}f`;
    return hasBlock(id) ? block(id) : Promise.resolve([]);
  }

  /** @param {number} tensor @returns {Promise<Tensor | null>} null where a side has none */
  async tensor(tensor) {
    if (tensor < 0) return null;
    const found = await block(`c${this.k}t${Math.floor(tensor / TENSORS)}`);
    const at = tensor % TENSORS;
    const { dtype, shape, grad, max, min, mean, norm, excluded, sum, value } = found;
    return {
      dtype: this.names[dtype[at]] ?? "", shape: this.names[shape[at]] ?? "", grad: grad[at], max: max[at],
      min: min[at], mean: mean[at], norm: norm[at], excluded: excluded ? excluded[at] : 0, sum: sum ? sum[at] : null, value: value ? value[at] : null,
    };
  }

  /** The row whose stacks are those of a row: a backward call has none, and its forward call has. @param {number} row */
  stackRow(row) {
    const { stack, golden_stack } = this.columns;
    if (!stack || stack[row] >= 0 || (golden_stack && golden_stack[row] >= 0)) return row;
    const name = this.name(row);
    const forward = name.replace(/\.backward(?=\.|$)/, ".forward").replace(/\.parameters_grad\.\d+$/, ".forward.0");
    const found = forward === name ? -1 : this.find(forward);
    return found < 0 ? row : found;
  }

  /** What is to be known of the stacks of a row. @param {number} row */
  stackNote(row) {
    return this.stackRow(row) === row ? "" : TEXTS.ofForward;
  }

  /** The frames of both sides as the data has them, innermost first. @param {number} at @returns {Promise<[number[], number[]]>} */
  async frameIndexes(at) {
    const row = this.stackRow(at);
    const { stack, golden_stack } = this.columns;
    if (!stack) return [[], []];
    const mine = stack[row];
    const other = golden_stack ? golden_stack[row] : this.golden(row) ? mine : -1;
    if (mine < 0 && other < 0) return [[], []];
    const stacks = await block("stacks");
    return [stacks[mine] ?? [], stacks[other] ?? []];
  }

  /** The call stacks of both sides, innermost frame first. @param {number} row @returns {Promise<[string[], string[]]>} */
  async stacks(row) {
    const [mine, other] = await this.frameIndexes(row);
    if (!mine.length && !other.length) return [[], []];
    const frames = await block("frames");
    return [mine.map((frame) => frames[frame]), other.map((frame) => frames[frame])];
  }
}

/** @param {number} k @returns {Promise<Rows>} */
async function readRows(k) {
  const [columns, names] = await Promise.all([block(`c${k}`), block("names")]);
  return new Rows(k, columns, names);
}
