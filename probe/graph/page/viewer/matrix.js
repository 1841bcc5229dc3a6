// Ranks and steps as a table: the worst status of each comparison and what it says first.

/** @template T @param {T[]} all @returns {T[]} */
const distinct = (all) => [...new Set(all)].sort((a, b) => (typeof a === "number" ? a - Number(b) : String(a).localeCompare(String(b))));

/** @param {Comparison} info @param {number} k */
function matrixCell(info, k) {
  const { statuses } = state.manifest;
  const said = info.verdict[0] || statuses[info.worst].name;
  return button("", () => openInOutline(k), {
    class: "cell", "data-comparison": k, title: info.verdict.join("\n"), "aria-current": String(k === state.rows?.k),
    "aria-label": `${placeOf(info)}: ${statuses[info.worst].name}. ${said}`,
  });
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

/** @param {HTMLElement} container */
function mountMatrix(container) {
  const { comparisons, unpaired } = state.manifest;
  const steps = distinct(comparisons.map((one) => one.step));
  const lines = distinct(comparisons.map((one) => one.run)).flatMap((run) =>
    distinct(comparisons.filter((one) => one.run === run).map((one) => one.rank)).map((rank) => ({ run, rank })));
  const table = el("table", { class: "matrix", onkeydown: matrixKey },
    el("thead", {}, el("tr", {}, el("th"), ...steps.map((step) => el("th", { scope: "col" }, step === null ? "" : `${TEXTS.step} ${step}`)))));
  const body = el("tbody");
  for (const { run, rank } of lines) {
    const line = el("tr", {}, el("th", { scope: "row" }, [run, rank === null ? "" : `${TEXTS.rank} ${rank}`].filter(Boolean).join(", ")));
    for (const step of steps) {
      const k = comparisons.findIndex((one) => one.run === run && one.rank === rank && one.step === step);
      if (k < 0) {
        line.append(el("td", { class: "none" }, "–"));
        continue;
      }
      const cell = matrixCell(comparisons[k], k);
      const said = (comparisons[k].verdict[0] || "").replace(/^first divergence: /, "");
      cell.append(badge(comparisons[k].worst), el("span", {}, said));
      line.append(el("td", {}, cell));
    }
    body.append(line);
  }
  table.append(body);
  container.append(el("p", {}, VIEW_TEXTS.worst), el("div", { class: "wide" }, table));
  if (unpaired.length) container.append(el("h2", {}, VIEW_TEXTS.unpaired), el("ul", { class: "unpaired" }, ...unpaired.map((line) => el("li", {}, line))));
}

registerView({
  key: "matrix", name: VIEW_TEXTS.matrix, mount: mountMatrix, unmount() {},
  isAvailable: () => state.manifest.comparisons.length > 1 || state.manifest.unpaired.length > 0,
});

// The matrix comes first where there are several ranks or steps, unless the address names a row.
let matrixWasShown = false;
onComparison(() => {
  const { comparisons } = state.manifest;
  const isWanted = new Set(comparisons.map((one) => `${one.step}/${one.rank}`)).size > 1 && !location.hash;
  if (isWanted && !matrixWasShown) queueMicrotask(() => state.view === "outline" && show("matrix"));
  matrixWasShown = true;
});
