// Who feeds whom: from a call to those that made what it takes, and on to those that take what it returned.

/** @typedef {{row: number, text: string}} Origin  a row, or -1 and what is no call: a parameter, data */

/** Where an item comes from: in the target, and in the golden run where that is another place. @param {Rows} rows @param {number} row @param {Maker | undefined} maker @returns {Origin[]} */
const originsOf = (rows, row, maker) =>
  [maker ?? 0].flat().filter(Boolean).map((one) => (one > 0 ? { row: row - one, text: rows.name(row - one) } : { row: -1, text: rows.names[-1 - one].replace(/^(parameter|buffer|gradient|data):/, "$1 ") }));

/** Where all that a row takes comes from; what is furthest apart is first. @param {Rows} rows @param {number} row @returns {Promise<(Origin & {item: string, distance: number})[]>} */
async function feedersOf(rows, row) {
  const [makers, { i = [] }] = await Promise.all([rows.makers(), rows.detail(row)]);
  const found = i.flatMap(([name, , , difference], at) =>
    originsOf(rows, row, (makers[row] || [])[at]).map((origin) => ({ ...origin, item: rows.names[name], distance: numeric(difference) || 0 })));
  return found.sort((one, other) => other.distance - one.distance);
}

/** The rows that take what each row returned. @type {WeakMap<Rows, Promise<Map<number, number[]>>>} */
const takers = new WeakMap();

/** The rows that take what a row returned, in order. @param {Rows} rows @param {number} row @returns {Promise<number[]>} */
async function takersOf(rows, row) {
  let found = takers.get(rows);
  if (!found) takers.set(rows, (found = rows.makers().then((makers) => {
    /** @type {Map<number, number[]>} */
    const all = new Map();
    makers.forEach((each, taker) => {
      for (const maker of new Set((each || []).flat())) {
        if (maker <= 0) continue;
        const known = all.get(taker - maker);
        if (known) known.push(taker);
        else all.set(taker - maker, [taker]);
      }
    });
    return all;
  })));
  return (await found).get(row) ?? [];
}

/** The rows at the other ends of the edges of the chosen row. */
let [feeding, taking] = [new Set([-1]), new Set([-1])];

/** @param {number} row */
const edgeMark = (row) => (feeding.has(row) ? el("em", { class: "edge", title: TEXTS.feeds }, "→●") : taking.has(row) ? el("em", { class: "edge", title: TEXTS.takes }, "●→") : "");

onSelect((row) => {
  const { rows } = state;
  Promise.all([feedersOf(rows, row), takersOf(rows, row)]).then(([before, after]) => {
    if (state.rows !== rows || state.selected !== row) return;
    feeding = new Set(before.map((one) => one.row));
    taking = new Set(after);
    drawOutline();
  }, showError);
});

/** Goes to the call that made what is furthest apart of the inputs, and says what no call made and is further apart. */
async function goBackwards() {
  const { rows, selected } = state;
  const found = await feedersOf(rows, selected);
  if (state.rows !== rows || state.selected !== selected) return;
  const [furthest, made] = [found[0], found.find((one) => one.row >= 0)];
  if (made) reveal(made.row);
  /** @param {typeof found[0]} one @param {string} text */
  const told = (one, text) => fill(text, one.item, rows.name(selected), differenceName(rows.info), shortNumber(one.distance), one.text);
  say([
    !furthest ? (hasBlock(`c${rows.k}f`) ? TEXTS.noFeeder : TEXTS.noEdges) : "",
    furthest?.row < 0 && furthest.distance ? told(furthest, TEXTS.notMade) : "",
    furthest && rows.columns.golden !== 0 && !furthest.distance ? told(furthest, TEXTS.inputsAgree) : "",
    made ? told(made, made.distance ? TEXTS.wentBack : TEXTS.madeItem) : furthest ? TEXTS.noFeeder : "",
  ].filter(Boolean).join(" "));
}

/** Goes to the call that takes an output of the chosen one, and of several to that whose outputs are furthest apart. */
async function goForwards() {
  const { rows, selected } = state;
  const found = await takersOf(rows, selected);
  if (state.rows !== rows || state.selected !== selected) return;
  if (!found.length) return say(hasBlock(`c${rows.k}f`) ? TEXTS.noTaker : TEXTS.noEdges);
  reveal(found.reduce((best, row) => ((rows.out[row] || 0) > (rows.out[best] || 0) ? row : best)));
}

for (const [key, run] of /** @type {[string, () => void][]} */ ([["a", () => void goBackwards()], ["d", () => void goForwards()]])) registerAction({ key, name: "", run });

/** The links of an item to where it comes from. @param {Rows} rows @param {number} row @param {Maker | undefined} maker */
const originLinks = (rows, row, maker) =>
  originsOf(rows, row, maker).map((origin, side) => el("span", { class: "from" }, `${side ? `${TEXTS.golden}: ` : ""}${TEXTS.from} `, origin.row < 0 ? origin.text : el("button", { class: "inline", onclick: () => reveal(origin.row), title: origin.text }, ...nameText(shortName(origin.text, 70)))));

const MOST_TAKERS = 12;

/** The calls that take what a row returned. @param {Rows} rows @param {number} row */
async function takerPart(rows, row) {
  const found = await takersOf(rows, row);
  return found.length > 0 && el("section", {}, el("h3", {}, TEXTS.goesTo), ...found.slice(0, MOST_TAKERS).map((one) => rowLink(one)), found.length > MOST_TAKERS && el("p", { class: "none" }, fill(TEXTS.more, found.length - MOST_TAKERS)));
}
