// Equal layers as one line: `layers 0 to 5: same`.

/** At least so many layers are worth a line less to open. */
const FEWEST_LAYERS = 3;
/** Folded layers by the first row of them. @type {Map<number, number[]>} */
let folds = new Map();
/** Rows that were asked for, which stay as they are. @type {Set<number>} */
let unfolded = new Set();

/** What layers have in common that are folded: all but the number; "" of a row that is none. @param {number} row */
function layerKey(row) {
  const { rows } = state;
  if (!rows.hasInside(row) || opened[row] || unfolded.has(row) || rows.columns.golden === 0) return "";
  const [, before, after] = /^((?:Module|Cell)\..*?\.)\d+(\.[^.]+\.(?:forward|backward)\.\d+)$/.exec(rows.target(row)) ?? [];
  if (!before || !rows.golden(row) || rows.problems(row)) return "";
  return `${before}*${after} ${state.manifest.statuses.map((_, status) => (status > SAME_STATUS ? rows.count(row, status) : "")).join(" ")} ${row - rows.first[row]}`;
}

/** Statuses up to this one say that nothing differs. */
const SAME_STATUS = 1;
/** The number of a layer. @param {number} row */
const layerNumber = (row) => Number(/\.(\d+)\.[^.]+\.(?:forward|backward)\.\d+$/.exec(state.rows.target(row))?.[1]);

/** The rows of equal layers from a place of the shown rows on; none where it is no such layer. @param {number} at @param {number} end @returns {number[]} */
function layersFrom(at, end) {
  const { rows } = state;
  const first = rows.shown[at];
  const key = layerKey(first);
  if (!key) return [];
  const found = [first];
  let way = 0;
  for (let next = at + first - rows.first[first] + 1; next < end; ) {
    const row = rows.shown[next];
    const by = layerNumber(row) - layerNumber(found[found.length - 1]);
    if (rows.parent[row] !== rows.parent[first] || Math.abs(by) !== 1 || (way && by !== way) || layerKey(row) !== key) break;
    way = by;
    found.push(row);
    next += row - rows.first[row] + 1;
  }
  return found.length < FEWEST_LAYERS ? [] : found;
}

/** Shows the layers one by one again. @param {number} row the first of them */
function unfold(row) {
  for (const one of folds.get(row) ?? []) unfolded.add(one);
  layOut();
}

/** Shows a row that stands in folded layers, if it does. @param {number} row */
function unfoldAround(row) {
  for (const up of [row, ...state.rows.above(row)]) {
    const [first] = [...folds].find(([, layers]) => layers.includes(up)) ?? [];
    if (first !== undefined && (up !== first || up !== row)) for (const one of folds.get(first) ?? []) unfolded.add(one);
  }
}

/** What a line of folded layers says. @param {number} row */
function foldCell(row) {
  const layers = folds.get(row) ?? [];
  const { rows } = state;
  const { statuses } = state.manifest;
  const last = layers[layers.length - 1];
  const name = rows.target(row).split(".");
  const at = name.findLastIndex((part) => /^(forward|backward)$/.test(part));
  const around = rows.target(rows.parent[row]).split(".");
  let same = 0;
  while (same < at - 3 && name[same] === around[same]) same++;
  if (!same && /^(Module|Cell)$/.test(name[0])) same = 1;
  const { worst } = rows;
  const differing = statuses.map((one, status) => (status > SAME_STATUS && rows.count(row, status) ? one.name : "")).filter(Boolean);
  const says = worst[row] <= SAME_STATUS ? statuses[SAME_STATUS].name : fill(TEXTS.alike, differing.join(", "));
  return el("span", { class: "name fold", style: `--d:${Math.min(rows.depth[row], 30)}` }, el("i", { class: "twist", "aria-hidden": "true" }, "▸"),
    el("b", {}, fill(TEXTS.layers, name.slice(same, at - 2).join("."), layerNumber(row), layerNumber(last))), `: ${says} `, el("small", {}, `${name[at - 1]}.${name[at]}`));
}
