// The data of the page: cells are unpacked when they are first needed, and turned into what a mode shows.

/**
 * @typedef {{block: string, low: number[], width: number[], log: boolean}} Scale
 * @typedef {{name: string, rows: string[], ops: Record<string, Scale>}} Family
 * @typedef {{step: number, ranks: number[], family: string, row: string, rule: string, why: string}} Alert
 * @typedef {{name: string, ranks: string[], aggregated: boolean, steps: number[], families: Family[], notes: string[],
 *   first: string | null, alerts: Alert[], alert_count: number}} Run
 * @typedef {{step: number, rank: number, name: string, family: string, text: string}} Difference
 * @typedef {{format: number, title: string, runs: Run[], difference: Difference | null, compared: number | null}} Manifest
 */

const FORMAT = 1;
const [MISSING, NOT_A_NUMBER, INFINITY, MINUS_INFINITY, ZERO, FIRST] = [0, 1, 2, 3, 4, 5];
const CODES = 65535 - FIRST;

/** @type {Map<string, Promise<Uint16Array>>} */
const codes = new Map();

/** @param {string} id @returns {Promise<Uint16Array>} */
function codesOf(id) {
  let found = codes.get(id);
  if (!found) {
    const text = byId(id).textContent || "";
    found = unpacked(text).arrayBuffer().then((bytes) => new Uint16Array(bytes));
    codes.set(id, found);
  }
  return found;
}

/** The values of one family and statistic of a run. */
class Cells {
  /** @param {Run} run @param {Family} family @param {string} op @param {Uint16Array} values */
  constructor(run, family, op, values) {
    this.run = run;
    this.family = family;
    this.scale = family.ops[op];
    this.codes = values;
    this.rows = family.rows.length;
    this.steps = run.steps.length;
    /** The median over the steps of each rank and row, the median distance from it, the least and the largest. @type {Map<number, [number, number, number, number]>} */
    this.usual = new Map();
  }

  /** NaN for what is no number; `undefined` where there is no value. @param {number} rank @param {number} row @param {number} step */
  value(rank, row, step) {
    const code = this.codes[(rank * this.rows + row) * this.steps + step];
    if (code >= FIRST) {
      const number = this.scale.low[row] + ((code - FIRST) / CODES) * this.scale.width[row];
      return this.scale.log ? 10 ** number : number;
    }
    if (code === MISSING) return undefined;
    return code === ZERO ? 0 : code === INFINITY ? Infinity : code === MINUS_INFINITY ? -Infinity : NaN;
  }

  /** Median, spread, least and largest of the sizes of finite values, in powers of ten; NaN without one. @param {number} rank @param {number} row */
  usualOf(rank, row) {
    const key = rank * this.rows + row;
    let found = this.usual.get(key);
    if (!found) {
      const sizes = [];
      for (let step = 0; step < this.steps; step++) {
        const value = this.value(rank, row, step);
        if (value !== undefined && Number.isFinite(value)) sizes.push(sized(value));
      }
      sizes.sort((one, other) => one - other);
      const middle = median(sizes);
      found = [middle, median(sizes.map((size) => Math.abs(size - middle))) * 1.4826, sizes[0] ?? NaN, sizes[sizes.length - 1] ?? NaN];
      this.usual.set(key, found);
    }
    return found;
  }
}

/** log10 of the size of a value, with a place for zero. @param {number} value */
const sized = (value) => Math.log10(Math.max(Math.abs(value), 1e-45));

/** @param {number[]} values */
function median(values) {
  if (!values.length) return NaN;
  const ordered = values.slice().sort((one, other) => one - other);
  return ordered[ordered.length >> 1];
}

/** @param {Run} run @param {string} family @param {string} op @returns {Promise<Cells | null>} */
async function cellsOf(run, family, op) {
  const found = run.families.find((one) => one.name === family);
  if (!found || !found.ops[op]) return null;
  return new Cells(run, found, op, await codesOf(found.ops[op].block));
}

/** A number in few characters. @param {number | undefined} value */
const short = (value) =>
  value === undefined ? TEXTS.missing : !Number.isFinite(value) ? String(value).replace("Infinity", "inf") : value === 0 ? "0" :
  Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
