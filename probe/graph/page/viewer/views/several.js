// One run beside several others: its calls as lines, an error of the outputs for each other run.

/** The comparisons with the same step, rank and place as the shown one, each of another run. */
const besides = () => {
  const { step, rank, place } = state.rows.info;
  return state.manifest.comparisons.map((info, k) => ({ info, k })).filter(({ info }) => info.step === step && info.rank === rank && info.place === place && info.golden);
};

let severalMounts = 0;

/** @param {HTMLElement} container */
async function mountSeveral(container) {
  const mine = ++severalMounts;
  const all = await Promise.all(besides().map(({ k }) => (k === state.rows.k ? state.rows : readRows(k))));
  if (mine !== severalMounts || state.view !== "several") return;
  const { names } = all[0];
  const { statuses } = state.manifest;
  // Several golden runs may stand beside one target, too: the lines are the calls of the run that is in all comparisons.
  const isByGolden = all.every((rows) => rows.info.golden?.path === all[0].info.golden?.path);
  /** @param {Rows} rows @returns {number[]} */
  const callsOf = (rows) => (isByGolden ? rows.columns.golden || [] : rows.columns.name);
  /** The row of each call in each comparison; -1 where it has none. */
  const rowOf = all.map((rows) => {
    const found = new Int32Array(names.length).fill(-1);
    callsOf(rows).forEach((name, row) => name >= 0 && (found[name] = row));
    return found;
  });
  const calls = [...new Set(all.flatMap((rows) => callsOf(rows).filter((name) => name >= 0)))];
  const inOrder = Int32Array.from(calls);
  let order = inOrder;
  /** The column that sorts, and whether the least is first: -1 is the order of execution. */
  let [by, isRising] = [-2, true];
  /** @param {number} one @param {number} name */
  const outOf = (one, name) => (rowOf[one][name] < 0 ? NaN : all[one].out[rowOf[one][name]]);
  /** @param {number} one @param {number} name */
  const statusOf = (one, name) => (rowOf[one][name] < 0 ? 0 : all[one].status[rowOf[one][name]]);

  const list = longList(VIEW_TEXTS.several, (line) => {
    const name = order[line];
    const cells = all.map((rows, one) => {
      const row = rowOf[one][name];
      const text = row < 0 ? "–" : rows.target(row) && rows.golden(row) ? shortNumber(rows.out[row]) : VIEW_TEXTS.noPartner;
      const status = statusOf(one, name);
      const isFirst = row >= 0 && row === rows.info.first;
      return el("span", { class: `num ${tone(status)}${isFirst ? " here" : ""}`, "data-run": one, style: distanceStyle(rows.info, outOf(one, name)), title: isFirst ? TEXTS.first : statuses[status].name }, row < 0 ? text : `${statuses[status].letter} ${text}`);
    });
    return el("div", { class: "row-several", title: names[name], "data-node": names[name] }, el("span", { class: "name" }, names[name]), ...cells);
  }, (line) => openAt(line, 0));
  /** @param {number} line @param {number} one */
  const openAt = (line, one) => {
    const best = rowOf[one][order[line]] >= 0 ? one : rowOf.findIndex((rows) => rows[order[line]] >= 0);
    void openInOutline(all[best].k, rowOf[best][order[line]]);
  };
  list.box.addEventListener("click", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const cell = target.closest("[data-run]");
    const line = target.closest("[data-line]");
    if (!cell || !line) return;
    event.stopImmediatePropagation();
    openAt(Number(line.getAttribute("data-line")), Number(cell.getAttribute("data-run")));
  }, true);

  /** @param {number} column */
  function sort(column) {
    [by, isRising] = [column, column === by ? !isRising : column < 0];
    if (column < 0) order = isRising ? inOrder : Int32Array.from(inOrder).reverse();
    else {
      // What has no error stands last either way, equal ones in order of execution.
      const keys = new Float64Array(names.length);
      for (const name of inOrder) keys[name] = outOf(column, name);
      const sign = isRising ? 1 : -1;
      for (const name of inOrder) keys[name] = Number.isNaN(keys[name]) ? 1e308 : sign * Math.min(keys[name], 1e307);
      order = Int32Array.from(calls.slice().sort((a, b) => keys[a] - keys[b]));
    }
    heads.forEach((head, place) => head.setAttribute("aria-pressed", String(place - 1 === by)));
    heads.forEach((head, place) => (head.dataset.sort = place - 1 === by ? (isRising ? "up" : "down") : ""));
    list.reset(order.length);
  }
  const heads = [VIEW_TEXTS.order, ...all.map((rows) => runName(rows.info.run))].map((text, place) => button(text, () => {
    sort(place - 1);
    say(fill(VIEW_TEXTS.sorted, text));
  }, { title: place ? all[place - 1].info.run : text }));
  container.style.setProperty("--runs", String(all.length));
  const title = el("div", { class: "row-several titles" }, ...heads);
  const alone = all.map((rows) => {
    const count = callsOf(rows).filter((name) => name < 0).length;
    return count ? el("p", {}, fill(VIEW_TEXTS.alone, count, runName(rows.info.run))) : null;
  });
  // Where each run leaves the other one, in the order of the columns; the list begins at the earliest.
  const firsts = all.map((rows) => {
    const { first, run } = rows.info;
    return button(`${runName(run)}: ${first === null ? VIEW_TEXTS.noFirst : rows.name(first)}`, () => void openInOutline(rows.k, first ?? undefined), { disabled: first === null, title: run });
  });
  const places = all.map((rows) => (rows.info.first === null ? -1 : calls.indexOf(callsOf(rows)[rows.info.first]))).filter((line) => line >= 0);
  container.append(el("div", { class: "tools" }, `${VIEW_TEXTS.firsts}:`, ...firsts), title, list.box, ...alone.filter((one) => one !== null));
  sort(-1);
  if (!places.length) return;
  // With some lines below it.
  list.go(Math.min(...places) + 8);
  list.go(Math.min(...places));
}

registerView({ key: "several", name: VIEW_TEXTS.several, mount: (container) => void mountSeveral(container), unmount() {}, isAvailable: () => !!state.rows && besides().length > 1 });
