// Rows with values that are not finite, too large or at the limit of their type, in order of execution.

/** The first value of a side that is not finite: the earliest step, then the earliest row. @param {"nonfinite" | "golden_nonfinite"} side */
function firstOf(side) {
  const found = state.manifest.comparisons.map((info, k) => ({ k, row: info[side] ?? -1, step: info.step ?? 0, isGolden: side !== "nonfinite" })).filter((one) => one.row >= 0);
  return found.sort((a, b) => a.step - b.step || a.row - b.row)[0];
}

/** That of the target, or where all of its values are finite that of the golden run. */
const firstNonfinite = () => firstOf("nonfinite") ?? firstOf("golden_nonfinite");

async function jumpToNonfinite() {
  const first = firstNonfinite();
  if (first) await openInOutline(first.k, first.row);
  if (!first || first.isGolden) say(first ? VIEW_TEXTS.onlyGolden : VIEW_TEXTS.allFinite);
}

/** @param {HTMLElement} container */
function mountOverflow(container) {
  const { rows } = state;
  const { levels } = state.manifest;
  const { level, golden_level } = rows.columns;
  /** @param {number} row */
  const levelsOf = (row) => [level[row] || 0, golden_level?.[row] || 0];
  const all = rows.status.map((_, row) => row).filter((row) => levelsOf(row).some(Boolean));
  const counts = levels.map((_, wanted) => all.filter((row) => levelsOf(row).includes(wanted)).length);
  // Of one run alone there is no status and no second level.
  const two = rows.columns.golden !== 0;
  // Hints are what healthy runs have, too: an rsqrt, say. They come on request, where anything is worse.
  const hidden = new Set(counts.slice(FIRST_LEVEL).some(Boolean) ? levels.map((_, one) => one).filter((one) => one < FIRST_LEVEL) : []);
  let passing = all;
  const list = longList(VIEW_TEXTS.overflow, (line) => {
    const row = passing[line];
    const [mine, other] = levelsOf(row);
    return el("div", { class: "row-overflow", "data-node": rows.name(row), title: fill(VIEW_TEXTS.sides, rows.name(row), levels[mine] || "–", levels[other] || "–") },
      two && badge(rows.status[row]), el("span", { class: "name" }, rows.name(row)), el("em", { class: `level l${mine}${row === rows.info.nonfinite ? " first" : ""}` }, levels[mine] || "–"),
      two && el("em", { class: `level l${other}` }, levels[other] || "–"));
  }, (line) => void openInOutline(rows.k, passing[line]));
  const none = el("p", {}, VIEW_TEXTS.noOverflow);
  function filter() {
    passing = all.filter((row) => levelsOf(row).some((one) => one && !hidden.has(one)));
    none.hidden = passing.length > 0;
    list.reset(passing.length);
  }
  const filters = levels.map((name, one) => button(`${name} ${counts[one]}`, () => {
    if (!hidden.delete(one)) hidden.add(one);
    filters[one].setAttribute("aria-pressed", String(!hidden.has(one)));
    filter();
  }, { "aria-pressed": String(!hidden.has(one)), "data-level": name, title: VIEW_TEXTS.levels[/** @type {"high"} */ (name)] ?? "", disabled: !counts[one] }));
  const first = firstNonfinite();
  const where = first ? state.manifest.comparisons[first.k] : null;
  // The stack stands beside, with the code.
  const said = (isSaid() ? state.manifest.said ?? [] : []).filter((text) => !/^\s*File /.test(text));
  container.append(
    el("div", { class: "reason" }, ...said.slice(0, 7).map((text) => el("p", {}, ...verdictLine(text))), said.length > 7 && el("details", {}, el("summary", {}, fill(TEXTS.more, said.length - 7)), ...said.slice(7).map((text) => el("p", {}, text)))),
    overflowSteps(),
    el("div", { class: "tools", role: "toolbar" },
      where ? button([VIEW_TEXTS.firstNonfinite, state.manifest.comparisons.length > 1 ? placeOf(where) : ""].filter(Boolean).join(": "), () => void jumpToNonfinite(), { class: "strong" })
        : el("span", {}, VIEW_TEXTS.allFinite), first?.isGolden && el("span", {}, VIEW_TEXTS.onlyGolden), ...filters.slice(1)),
    el("p", { class: "legend" }, ...levels.flatMap((name, one) => (counts[one] && one ? [el("b", {}, name), ` ${VIEW_TEXTS.levels[/** @type {"high"} */ (name)]}  `] : []))),
    el("div", { class: "row-overflow titles" }, two && el("span"), el("span", {}, VIEW_TEXTS.calls), el("span", {}, two ? TEXTS.target : TEXTS.level), two && el("span", {}, TEXTS.golden)),
    list.box, none);
  filter();
}

/** All steps and ranks of the page: the first one with a value that is not finite, those behind it, and the finite ones. */
function overflowSteps() {
  const { comparisons } = state.manifest;
  const first = firstNonfinite();
  if (comparisons.length < 2) return "";
  const inOrder = comparisons.map((info, k) => ({ info, k })).sort((one, other) => Number(one.info.step) - Number(other.info.step) || one.k - other.k);
  return el("div", { class: "tools steps" }, ...inOrder.map(({ info, k }) => {
    const row = info.nonfinite ?? info.golden_nonfinite ?? null;
    const [letter, colour, text] = row === null ? ["=", "good", VIEW_TEXTS.finite] : k === first?.k ? ["!", "bad", TEXTS.answers.bad] : ["→", "neutral", VIEW_TEXTS.notFinite];
    const made = button("", () => void openComparison(k, row ?? undefined), { class: "small", "data-comparison": k, "aria-current": String(k === state.rows.k), title: `${placeOf(info)}: ${k === first?.k ? VIEW_TEXTS.firstNonfinite : text}` });
    made.append(`${placeOf(info)} `, el("span", { class: `badge s-${colour}` }, letter));
    return made;
  }));
}

registerView({
  key: "overflow", name: VIEW_TEXTS.overflow, unmount() {}, mount: mountOverflow,
  isAvailable: () => !!firstNonfinite() || !!state.rows && [state.rows.columns.level, state.rows.columns.golden_level].some((one) => one?.some?.(Boolean)),
});
registerAction({ key: "o", name: VIEW_TEXTS.firstNonfinite, run: () => void jumpToNonfinite() });
