// Ranks and steps as a table: the worst status of each comparison and what it says first.

/** @param {Comparison} info @param {number} k */
function matrixCell(info, k) {
  const { statuses } = state.manifest;
  const said = info.verdict[0] || statuses[info.worst].name;
  return button("", () => openInOutline(k), {
    class: "cell", "data-comparison": k, title: info.verdict.join("\n"), "aria-current": String(k === state.rows?.k), "data-first": k === state.manifest.first, "data-answer": isRepeated(info, k) ? "follows" : answerOf(info),
    "aria-label": `${placeOf(info)}: ${[statuses[info.worst].name, said].filter(Boolean).join(". ")}`,
  });
}

/** The comparisons of each line of the matrix: those of one run, rank and place, by its name. */
function matrixLines() {
  /** @type {Map<string, {info: Comparison, k: number}[]>} */
  const lines = new Map();
  state.manifest.comparisons.forEach((info, k) => {
    const name = placeOf({ ...info, step: null });
    lines.set(name, [...(lines.get(name) || []), { info, k }]);
  });
  // Runs as they were given.
  const runs = [...new Set(state.manifest.comparisons.map((one) => one.run))];
  return [...lines].sort(([one, [mine]], [other, [theirs]]) => runs.indexOf(mine.info.run) - runs.indexOf(theirs.info.run) || one.localeCompare(other, undefined, { numeric: true }));
}

/** The matrix in small above the rows: the worst status of each comparison. */
function drawStrip() {
  const { comparisons } = state.manifest;
  const strip = byId("strip");
  strip.hidden = comparisons.length < 2;
  if (strip.hidden) return;
  strip.replaceChildren(...matrixLines().map(([name, mine]) => {
    mine.sort((a, b) => Number(a.info.step) - Number(b.info.step));
    return el("span", { class: "group" }, `${[name, mine.some(({ info }) => info.step !== null) && TEXTS.step].filter(Boolean).join(", ")} `, ...mine.map(({ info, k }) => {
      const cell = matrixCell(info, k);
      cell.className = "small";
      cell.title = [placeOf(info), ...info.verdict].join("\n");
      cell.append(el("small", {}, String(info.step ?? k)), answerBadge(info, k));
      return cell;
    }));
  }));
}

/** Arrow keys go from cell to cell. @param {KeyboardEvent} event */
function matrixKey(event) {
  /** @type {Record<string, [number, number]>} */
  const ways = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const way = ways[event.key];
  const cell = /** @type {HTMLElement} */ (event.target).closest("td");
  if (!way || !cell) return;
  event.preventDefault();
  const table = /** @type {HTMLTableElement} */ (cell.closest("table"));
  let [line, column] = [/** @type {HTMLTableRowElement} */ (cell.parentNode).rowIndex, cell.cellIndex];
  for (;;) {
    line += way[0];
    column += way[1];
    const next = table.rows[line]?.cells[column];
    if (!next) return;
    const inside = next.querySelector("button");
    if (inside) return inside.focus();
  }
}

/** What stands in a cell: the call, and why. @param {Comparison} info @param {number} k @returns {(Node | string)[]} */
function cellText(info, k) {
  const { comparisons, first } = state.manifest;
  if (isRepeated(info, k)) return [breakable(info.first_name ?? ""), el("small", { class: "said" }, fill(TEXTS.asOn, placeOf(comparisons[first ?? 0])))];
  const said = (info.verdict[0] || "").replace(/^(first divergence|cannot be told): /, "");
  const why = [info.card?.cause, info.card?.effect, ...(info.card?.hints ?? [])].filter(Boolean).join(" · ");
  return [breakable(said), why ? el("small", { class: "said" }, why) : ""];
}

/** A text that may be broken behind its dots. @param {string} text */
const breakable = (text) => el("span", {}, ...text.split(/(?<=\.)/).flatMap((piece) => [piece, el("wbr")]));

/** @param {HTMLElement} container */
function mountMatrix(container) {
  const { comparisons, unpaired } = state.manifest;
  const steps = [...new Set(comparisons.map((one) => one.step))].sort((a, b) => Number(a) - Number(b));
  const table = el("table", { class: "matrix", onkeydown: matrixKey },
    el("thead", {}, el("tr", {}, el("th"), ...steps.map((step) => el("th", { scope: "col" }, step === null ? "" : `${TEXTS.step} ${step}`)))));
  const body = el("tbody");
  for (const [name, mine] of matrixLines()) {
    const line = el("tr", {}, el("th", { scope: "row" }, name));
    for (const step of steps) {
      const k = mine.find(({ info }) => info.step === step)?.k;
      if (k === undefined) {
        line.append(el("td", { class: "none" }, "–"));
        continue;
      }
      const cell = matrixCell(comparisons[k], k);
      cell.append(answerBadge(comparisons[k], k), el("span", {}, ...cellText(comparisons[k], k)));
      line.append(el("td", {}, cell));
    }
    body.append(line);
  }
  table.append(body);
  table.style.setProperty("--steps", String(steps.length));
  /** @param {string} letter @param {string} colour @param {string} text */
  const legend = (letter, colour, text) => el("span", {}, el("span", { class: `badge s-${colour}` }, letter), ` ${text}`);
  const { answers } = TEXTS;
  container.append(el("p", { class: "tools" }, legend("!", "bad", answers.bad), legend("→", "neutral", answers.follows), legend("?", "warn", answers.untold), legend("=", "good", answers.fine), el("span", {}, VIEW_TEXTS.worst)));
  container.append(el("div", { class: "wide" }, table));
  if (unpaired.length) container.append(el("h2", {}, VIEW_TEXTS.unpaired), el("ul", { class: "unpaired" }, ...unpaired.map((line) => el("li", {}, line))));
}

registerView({
  key: "matrix", name: VIEW_TEXTS.matrix, mount: mountMatrix, unmount() {},
  isAvailable: () => state.manifest.comparisons.length > 1 || state.manifest.unpaired.length > 0,
});

registerAction({ key: "r", name: VIEW_TEXTS.matrix, run: () => show("matrix") });
onComparison(drawStrip);
