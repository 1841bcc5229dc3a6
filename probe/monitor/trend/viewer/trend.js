// What is looked at: family, statistic, mode, rank and row. Everything is drawn anew when one of these changes.

/** @type {Manifest} */
let manifest;
const state = {
  family: "", op: "", mode: "ratio", order: "execution", axes: "rows", query: "",
  /** The index of the rank, of the run that is selected. */ rank: 0,
  /** The label of the row that is selected, with the index of its run and step. */ row: "", run: 0, step: 0,
  /** Lines besides that of the selected row: run, family, label, rank. @type {[number, string, string, number][]} */ pins: [],
};
/** @type {HeatMap[]} */
let maps = [];
/** The cells of each run that are shown. @type {(Cells | null)[]} */
let shown = [];
/** @type {Line[][]} */
let lines = [];
let drawing = 0;
/** The index of the alert that was jumped to. */
let alertAt = -1;

/** All families of all runs. */
const familyNames = () => [...new Set(manifest.runs.flatMap((run) => run.families.map((one) => one.name)))];
/** @param {string} family */
const opsOf = (family) => [...new Set(manifest.runs.flatMap((run) => Object.keys(run.families.find((one) => one.name === family)?.ops ?? {})))];

// --- what a cell shows

/** The measure of a mode, and its limits. @param {Cells | null} other @returns {{measure: (line: Line, step: number) => number | undefined, limits: [number, number], isDiverging: boolean}} */
function measureOf(other) {
  const { mode } = state;
  /** @param {Line} line @param {number} step */
  const value = (line, step) => line.cells.value(line.rank, line.row, step);
  /** Finite values are measured, others are NaN. @param {(size: number, line: Line, step: number) => number | undefined} measure @returns {(line: Line, step: number) => number | undefined} */
  const finite = (measure) => (line, step) => {
    const found = value(line, step);
    return found === undefined ? undefined : Number.isFinite(found) ? measure(found, line, step) : NaN;
  };
  if (mode === "z")
    return { measure: finite((found, line) => {
      const [middle, spread] = line.cells.usualOf(line.rank, line.row);
      // A row that never changes has no spread; of noise below 0.1 % nothing is made.
      return (sized(found) - middle) / Math.max(spread, 4e-4);
    }), ...around([5, 10, 20], ([middle, spread, least, most]) => Math.max(middle - least, most - middle) / Math.max(spread, 4e-4)) };
  if (mode === "change")
    return { measure: finite((found, line, step) => {
      const before = step ? value(line, step - 1) : undefined;
      return before === undefined || !Number.isFinite(before) ? 0 : sized(found) - sized(before);
    }), ...around(FACTORS, ([, , least, most]) => most - least) };
  if (mode === "other" && other)
    return { measure: finite((found, line, step) => {
      const row = other.family.rows.indexOf(line.cells.family.rows[line.row]);
      const at = other.run.steps.indexOf(line.cells.run.steps[step]);
      const wanted = row < 0 || at < 0 ? undefined : other.value(Math.min(line.rank, other.run.ranks.length - 1), row, at);
      return wanted === undefined ? undefined : Number.isFinite(wanted) ? sized(found) - sized(wanted) : NaN;
    }), ...around(FACTORS, ([, , least, most], line) => {
      const row = other.family.rows.indexOf(line.cells.family.rows[line.row]);
      const [, , low, high] = row < 0 ? [] : other.usualOf(Math.min(line.rank, other.run.ranks.length - 1), row);
      return low === undefined || high === undefined ? NaN : Math.max(most - low, high - least);
    }) };
  if (mode === "raw") {
    let [low, high] = [Infinity, -Infinity];
    for (const line of lines.flat()) {
      const [, , least, most] = line.cells.usualOf(line.rank, line.row);
      // Zeros would take the whole scale.
      if (least > -40) low = Math.min(low, least);
      if (most > -40) high = Math.max(high, most);
    }
    [low, high] = low <= high ? [roundSize(low, -1), roundSize(high, 1)] : [-1, 1];
    return { measure: finite((found) => sized(found)), limits: [low, high > low ? high : low + 1], isDiverging: false };
  }
  return { measure: finite((found, line) => sized(found) - line.cells.usualOf(line.rank, line.row)[0]), ...around(FACTORS, ([middle, , least, most]) => Math.max(middle - least, most - middle)) };
}

/** The size that is 1, 2 or 5 times a power of ten, next to another one. @param {number} size a power of ten @param {1 | -1} way up or down */
function roundSize(size, way) {
  const power = Math.floor(size);
  const round = [1, 2, 5, 10].map((digit) => power + Math.log10(digit));
  return (way > 0 ? round.find((one) => one > size - 1e-6) : round.findLast((one) => one < size + 1e-6)) ?? size;
}

/** Ends of a scale of factors, in powers of ten: less than twice is hardly anything, and beyond a thousand times nothing else would be seen. */
const FACTORS = [Math.log10(2), Math.log10(5), 1, 2, 3];

/** Limits around the middle of a scale: the least of some that hold all that is shown. @param {number[]} ends @param {(usual: number[], line: Line) => number} far how far a line goes from the middle @returns {{limits: [number, number], isDiverging: boolean}} */
function around(ends, far) {
  let most = 0;
  // Zeros stand apart from all other sizes.
  for (const line of lines.flat()) most = Math.max(most, far(line.cells.usualOf(line.rank, line.row).map((size) => (size < -40 ? NaN : size)), line) || 0);
  const limit = ends.find((end) => end >= most) ?? ends[ends.length - 1];
  return { limits: [-limit, limit], isDiverging: true };
}

// --- drawing

async function showMaps() {
  const mine = ++drawing;
  const found = await Promise.all(manifest.runs.map((run) => cellsOf(run, state.family, state.op)));
  if (mine !== drawing) return;
  shown = found;
  const wanted = filterOf(state.query);
  lines = shown.map((cells) => (cells ? linesOf(cells, wanted) : []));
  maps.forEach((map, index) => {
    const other = shown[index ? 0 : 1] ?? null;
    map.show({ lines: lines[index], ...measureOf(other), rowTitle: rowTitle(), marks: marksOf(index), selected: selectedIn(index) });
  });
  showLegend();
  await showLines();
  document.documentElement.dataset.ready = "1";
}

/** The lines of a map. @param {Cells} cells @param {(label: string) => boolean} wanted @returns {Line[]} */
function linesOf(cells, wanted) {
  if (state.axes === "ranks") {
    const row = cells.family.rows.indexOf(state.row);
    return row < 0 ? [] : cells.run.ranks.map((rank, index) => ({ cells, rank: index, row, label: rankName(cells.run, rank) }));
  }
  const rank = Math.min(state.rank, cells.run.ranks.length - 1);
  const found = cells.family.rows.map((label, row) => ({ cells, rank, row, label })).filter(({ label }) => wanted(label));
  if (state.order === "name") found.sort((one, other) => one.label.localeCompare(other.label, "en", { numeric: true }));
  return found;
}

/** What the rows of a map are. */
const rowTitle = () => (state.axes === "ranks" ? TEXTS.rank : /^actv/.test(state.family) ? TEXTS.module : /^(grad|param|exp_avg|weight)/.test(state.family) ? TEXTS.parameter : TEXTS.row);

/** @param {Run} run @param {string} rank */
const rankName = (run, rank) => (run.aggregated ? TEXTS.aggregated[/** @type {"min"} */ (rank)] : `${TEXTS.rank} ${rank}`);

/** @param {string} query @returns {(label: string) => boolean} */
function filterOf(query) {
  const text = query.trim();
  if (text.length > 2 && text.startsWith("/") && text.endsWith("/")) {
    try {
      const pattern = new RegExp(text.slice(1, -1));
      return (label) => pattern.test(label);
    } catch (error) {
      say(fill(TEXTS.badSearch, String(error)));
      return () => true;
    }
  }
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (label) => words.every((word) => label.toLowerCase().includes(word));
}

/** @param {number} index of the run @returns {[number, number]} */
function selectedIn(index) {
  const line = lines[index].findIndex((one) => (state.axes === "ranks" ? one.rank === state.rank : one.label === state.row));
  return [line, state.step];
}

/** The cells with alerts, and the first difference. @param {number} index @returns {Map<string, string>} */
function marksOf(index) {
  const run = manifest.runs[index];
  const found = new Map();
  /** @param {number} rank @param {string} row @param {number} step @param {string} colour */
  const mark = (rank, row, step, colour) => {
    const at = run.steps.indexOf(step);
    const ofRank = run.aggregated ? state.rank : run.ranks.indexOf(String(rank));
    lines[index].forEach((line, number) => {
      if (at >= 0 && line.rank === ofRank && line.cells.family.rows[line.row] === row) found.set(`${number} ${at}`, colour);
    });
  };
  for (const one of run.alerts) if (one.family === state.family) for (const rank of one.ranks) mark(rank, one.row, one.step, "--bad");
  const { difference } = manifest;
  if (difference && difference.family === state.family && index < 2) mark(difference.rank, difference.name || "(root)", difference.step, "--info");
  return found;
}

function showLegend() {
  const { limits, isDiverging } = measureOf(shown[1] ?? null);
  const scale = isDiverging ? diverging() : RISING;
  const [low, high] = limits;
  /** @param {number} mark */
  const text = (mark) => (state.mode === "z" ? String(mark) : `${state.mode === "raw" ? "" : "×"}${Math.abs(mark) > 3 ? (10 ** mark).toExponential(0) : Number((10 ** mark).toPrecision(3))}`);
  byId("legend").replaceChildren(
    el("span", { class: "key" }, `${state.op}, ${fill(TEXTS.modes[/** @type {"raw"} */ (state.mode)], TEXTS.otherRun)}`),
    el("span", { id: "bar-of-colours" }, el("i", { style: `background: linear-gradient(90deg, ${scale.map((_, at) => shade(scale, at / (scale.length - 1))).join(", ")})` }),
      ...marksOn(low, high).map((mark) => el("small", { style: `left: ${((mark - low) / (high - low)) * 100}%` }, text(mark)))),
    ...[["--alone", TEXTS.nan, true], ["--bad", TEXTS.alert, false], ...(manifest.difference ? [["--info", TEXTS.first, false]] : [])].map(([colour, name, isFull]) =>
      el("span", { class: "key" }, el("i", { style: isFull ? `background: var(${colour})` : `border: 2px solid var(${colour})` }), String(name))
    ),
    el("span", {}, lines.every((each) => !each.length) ? TEXTS.noRows : "")
  );
}

/** Round marks on the scale of the colours: 1, 2, 5 or powers of ten, of z steps. @param {number} low @param {number} high */
function marksOn(low, high) {
  if (state.mode === "z") return [low, low / 2, 0, high / 2, high];
  const digits = high - low > 2.1 ? [1] : [1, 2, 5];
  const by = Math.ceil((high - low) / 6.5);
  const found = [];
  for (let power = Math.floor(low); power <= high; power += by) found.push(...digits.map((digit) => power + Math.log10(digit)));
  return found.filter((mark) => mark > low - 1e-6 && mark < high + 1e-6);
}

async function showLines() {
  /** @type {Curve[]} */
  const curves = [];
  const wanted = [...manifest.runs.map((_, index) => /** @type {[number, string, string, number]} */ ([index, state.family, state.row, state.rank])), ...state.pins];
  for (const [index, family, row, rank] of wanted) {
    const run = manifest.runs[index];
    const op = opsOf(family).includes(state.op) ? state.op : "norm";
    const cells = await cellsOf(run, family, op);
    const at = cells ? cells.family.rows.indexOf(row) : -1;
    if (!cells || at < 0) continue;
    const named = manifest.runs.length > 1 ? `${run.name}: ` : "";
    const of = run.ranks.length > 1 ? `, ${rankName(run, run.ranks[Math.min(rank, run.ranks.length - 1)])}` : "";
    curves.push({ label: `${named}${row} (${family}, ${op})${of}`, cells, rank: Math.min(rank, run.ranks.length - 1), row: at, dash: index > 0 });
  }
  const ownRuns = manifest.runs.length;
  byId("pins").replaceChildren(
    ...curves.map((curve, index) =>
      el("button", { class: "pin", title: index >= ownRuns ? TEXTS.unpin : "", onclick: () => index >= ownRuns && void (state.pins.splice(index - ownRuns, 1), showLines()) },
        el("i", { style: `background: ${lineColour(index)}` }), curve.label)
    ),
    el("small", {}, [...(curves.some(({ cells }) => cells.run.ranks.length > 1) ? [TEXTS.band] : []), ...(curves.some(hasNonfinite) ? [TEXTS.nanAbove] : [])].join("; "))
  );
  drawLines(/** @type {HTMLCanvasElement} */ (byId("plot")), curves, state.step);
}

// --- choosing

/** @param {number} run @param {string} row @param {number} step an index @param {number} [rank] */
function choose(run, row, step, rank) {
  Object.assign(state, { run, row, step, rank: rank ?? state.rank });
  const line = lines[run]?.findIndex((one) => one.label === row) ?? -1;
  writeAddress();
  showBar();
  void showMaps().then(() => line >= 0 && maps[run]?.reveal(line));
}

/** Goes to an alert, or to the first difference. @param {number} run @param {string} family @param {string} row @param {number} step the number @param {number} rank the number */
function jump(run, family, row, step, rank) {
  const found = manifest.runs[run];
  Object.assign(state, { family, query: "", axes: "rows", op: opsOf(family).includes(state.op) ? state.op : opsOf(family)[0] });
  const near = found.steps.reduce((best, one, at) => (Math.abs(one - step) < Math.abs(found.steps[best] - step) ? at : best), 0);
  const ofRank = found.ranks.indexOf(String(rank));
  choose(run, row, near, ofRank < 0 ? 0 : ofRank);
  void showMaps().then(() => maps[run].reveal(selectedIn(run)[0]));
}

/** @param {number} at of all runs */
function jumpToAlert(at) {
  const all = manifest.runs.flatMap((run, index) => run.alerts.map((one) => /** @type {[number, Alert]} */ ([index, one])));
  if (!all.length) return;
  alertAt = (at + all.length) % all.length;
  const [run, one] = all[alertAt];
  jump(run, one.family, one.row, one.step, one.ranks[0]);
  document.querySelectorAll("#alerts button").forEach((each, index) => each.setAttribute("aria-current", String(index === alertAt)));
  document.querySelector("#alerts [aria-current='true']")?.scrollIntoView({ block: "nearest" });
}

/** Ranks in few characters. @param {number[]} ranks */
const rangeText = (ranks) => (ranks.length > 2 && ranks[ranks.length - 1] - ranks[0] === ranks.length - 1 ? `${ranks[0]}–${ranks[ranks.length - 1]}` : ranks.slice(0, 8).join(", ") + (ranks.length > 8 ? " …" : ""));

/** @param {number} line @param {number} step @param {number} run @param {MouseEvent | null} event */
function showTip(line, step, run, event) {
  const tip = byId("tip");
  tip.hidden = !event;
  if (!event) return;
  const { cells, rank, row } = lines[run][line];
  const value = cells.value(rank, row, step);
  const [middle] = cells.usualOf(rank, row);
  const at = cells.run.steps[step];
  const alerts = cells.run.alerts.filter((one) => one.family === state.family && one.row === cells.family.rows[row] && one.step === at);
  tip.replaceChildren(
    el("b", {}, cells.family.rows[row]), `${TEXTS.step} ${at}, ${rankName(cells.run, cells.run.ranks[rank])}: ${state.op} ${short(value)}`,
    ...(Number.isFinite(middle) && value !== undefined && Number.isFinite(value) ? [el("br"), `${short(10 ** (sized(value) - middle))} × the median ${short(10 ** middle)}`] : []),
    ...alerts.flatMap((one) => [el("br"), el("strong", { class: "s-bad" }, `${one.rule}: ${one.why}`)])
  );
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}

// --- the parts of the page

/** @param {string} label @param {[string, string][]} choices @param {string} value @param {(value: string) => void} change */
function menu(label, choices, value, change) {
  const select = /** @type {HTMLSelectElement} */ (el("select", { onchange: (/** @type {Event} */ event) => change(/** @type {HTMLSelectElement} */ (event.target).value), "aria-label": label },
    ...choices.map(([key, name]) => el("option", { value: key, selected: key === value }, name))));
  return el("label", {}, label, select);
}

function showBar() {
  const run = manifest.runs[state.run];
  const focused = document.activeElement?.getAttribute("aria-label");
  /** @param {Partial<typeof state>} values */
  const set = (values) => {
    Object.assign(state, values);
    if (!opsOf(state.family).includes(state.op)) state.op = opsOf(state.family)[0];
    const rows = run.families.find((one) => one.name === state.family)?.rows ?? [];
    if (!rows.includes(state.row)) state.row = rows[0] ?? "";
    writeAddress();
    showBar();
    void showMaps();
  };
  const others = manifest.runs.length > 1 ? [/** @type {[string, string]} */ (["other", fill(TEXTS.modes.other, TEXTS.otherRun)])] : [];
  const modes = /** @type {[string, string][]} */ (["ratio", "raw", "z", "change"].map((key) => [key, TEXTS.modes[/** @type {"raw"} */ (key)]]));
  byId("bar").replaceChildren(
    menu(TEXTS.family, familyNames().map((name) => [name, name]), state.family, (family) => set({ family })),
    menu(TEXTS.statistic, opsOf(state.family).map((name) => [name, name]), state.op, (op) => set({ op })),
    menu(TEXTS.shown, [...modes, ...others], state.mode, (mode) => set({ mode })),
    ...(run.ranks.length > 1
      ? [menu(TEXTS.rank, run.ranks.map((rank, at) => [String(at), rankName(run, rank)]), String(state.rank), (rank) => set({ rank: Number(rank) })),
         menu(TEXTS.axis, Object.entries(TEXTS.axes), state.axes, (axes) => set({ axes }))]
      : []),
    menu(TEXTS.order, Object.entries(TEXTS.orders), state.order, (order) => set({ order })),
    el("input", { id: "search", type: "search", placeholder: TEXTS.search, "aria-label": TEXTS.search, value: state.query,
      oninput: (/** @type {Event} */ event) => { state.query = /** @type {HTMLInputElement} */ (event.target).value; void showMaps(); } })
  );
  if (focused) /** @type {HTMLElement | undefined} */ ([...byId("bar").querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focused))?.focus();
}

/** A number of things, by the word for one or for several. @param {string[]} words @param {number} number */
const counted = (words, number) => fill(words[number === 1 ? 0 : 1], number);

function showHead() {
  const { runs, difference, compared } = manifest;
  const firsts = runs.flatMap((run, index) => (run.first ? [/** @type {[number, string]} */ ([index, run.first])] : []));
  const bad = firsts.length > 0 || difference !== null;
  const parts = firsts.map(([index, text]) => {
    const first = runs[index].alerts[0];
    return el("h1", {}, `${runs.length > 1 ? `${runs[index].name}: ` : ""}first: ${text}`, el("button", { onclick: () => jump(index, first.family, first.row, first.step, first.ranks[0]) }, TEXTS.go));
  });
  if (difference) parts.push(el("h1", {}, fill(TEXTS.firstDifference, difference.text), el("button", { onclick: () => jump(0, difference.family, difference.name || "(root)", difference.step, difference.rank) }, TEXTS.go)));
  else if (compared !== null) parts.push(el("p", {}, fill(TEXTS.noDifference, compared)));
  byId("head").replaceChildren(
    el("div", { id: "verdict", class: bad ? "bad" : "" }, ...(parts.length ? parts : [el("h1", {}, TEXTS.healthy)]),
      el("p", {}, runs.map((run) => `${run.name}: ${[...(run.aggregated ? [] : [counted(TEXTS.ranks, run.ranks.length)]), counted(TEXTS.steps, run.steps.length), counted(TEXTS.alerts, run.alert_count)].join(", ")}`).join("; "))),
    el("div", { id: "about" }, el("button", { onclick: changeTheme, title: TEXTS.theme, "aria-label": TEXTS.theme }, "◐"), el("button", { onclick: showHelp, title: TEXTS.help, "aria-label": TEXTS.help }, "?")),
    ...runs.flatMap((run) => run.notes.map((note) => el("div", { class: "banner" }, note)))
  );
}

function showAlerts() {
  const all = manifest.runs.flatMap((run, index) => run.alerts.map((one) => /** @type {[number, Alert]} */ ([index, one])));
  const left = manifest.runs.reduce((sum, run) => sum + run.alert_count - run.alerts.length, 0);
  byId("side").replaceChildren(
    el("h2", {}, counted(TEXTS.alerts, all.length + left)),
    el("ul", { id: "alerts" }, ...all.map(([run, one], at) =>
      el("li", {}, el("button", { onclick: () => jumpToAlert(at) }, el("b", {}, one.rule), ` ${TEXTS.step} ${one.step}${manifest.runs[run].ranks.length > 1 ? `, ${fill(one.ranks.length > 1 ? TEXTS.ofRanks : TEXTS.ofRank, rangeText(one.ranks))}` : ""}`,
        el("small", {}, el("code", {}, one.row), ` ${one.family}`), el("small", {}, one.why)))),
      ...(all.length ? [] : [el("p", {}, TEXTS.noAlerts)]), ...(left ? [el("p", {}, fill(TEXTS.more, left))] : []))
  );
}

function showHelp() {
  const dialog = /** @type {HTMLDialogElement} */ (el("dialog", {}, el("h2", {}, TEXTS.help), el("dl", {}, ...Object.entries(TEXTS.keys).flatMap(([key, text]) => [el("dt", {}, el("code", {}, key)), el("dd", {}, text)])),
    el("form", { method: "dialog" }, el("button", {}, TEXTS.close))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (event.key === "Escape" && state.query) {
    state.query = "";
    showBar();
    return void showMaps();
  }
  if (isTyping) return;
  const mine = lines[state.run] ?? [];
  const [line] = selectedIn(state.run);
  /** @param {number} rows @param {number} steps */
  const move = (rows, steps) => {
    const next = mine[Math.min(mine.length - 1, Math.max(0, line + rows))];
    if (!next) return;
    const step = Math.min(next.cells.steps - 1, Math.max(0, state.step + steps));
    choose(state.run, next.cells.family.rows[next.row], step, next.rank);
    maps[state.run].reveal(Math.max(0, line + rows));
  };
  /** @type {Record<string, () => void>} */
  const keys = {
    ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
    n: () => jumpToAlert(alertAt + 1), p: () => jumpToAlert(alertAt - 1), f: () => jumpToAlert(0), "/": () => byId("search").focus(), "?": showHelp,
    r: () => { state.axes = state.axes === "rows" ? "ranks" : "rows"; showBar(); void showMaps(); },
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

// --- the address, so that a view can be sent

const KEPT = /** @type {const} */ (["family", "op", "mode", "order", "axes", "row"]);

function writeAddress() {
  const found = new URLSearchParams(KEPT.filter((key) => state[key]).map((key) => [key, state[key]]));
  found.set("step", String(manifest.runs[state.run].steps[state.step] ?? ""));
  found.set("rank", manifest.runs[state.run].ranks[state.rank] ?? "");
  history.replaceState(null, "", `#${found}`);
}

function readAddress() {
  const found = new URLSearchParams(location.hash.slice(1));
  if (familyNames().includes(found.get("family") ?? "")) state.family = String(found.get("family"));
  if (opsOf(state.family).includes(found.get("op") ?? "")) state.op = String(found.get("op"));
  if ((found.get("mode") ?? "") in TEXTS.modes) state.mode = String(found.get("mode"));
  const run = manifest.runs[0];
  const rows = run.families.find((one) => one.name === state.family)?.rows ?? [];
  if (rows.includes(found.get("row") ?? "")) state.row = String(found.get("row"));
  state.step = Math.max(0, run.steps.indexOf(Number(found.get("step") ?? NaN)));
  state.rank = Math.max(0, run.ranks.indexOf(found.get("rank") ?? ""));
  return found.has("row");
}

function start() {
  manifest = JSON.parse(byId("manifest").textContent || "null");
  if (!manifest) throw new Error(TEXTS.noData);
  if (manifest.format !== FORMAT) throw new Error(fill(TEXTS.otherFormat, manifest.format, FORMAT));
  const setKept = () => setTheme(kept(THEME) === null ? darkSystem.matches : !!kept(THEME));
  setKept();
  darkSystem.addEventListener("change", setKept);
  byId("main").append(
    el("div", { id: "left" }, el("div", { id: "maps" }), el("div", { id: "legend" }), el("div", { id: "lines" }, el("div", { id: "pins" }), el("canvas", { id: "plot", role: "img", "aria-label": "lines" }))),
    el("aside", { id: "side" })
  );
  maps = manifest.runs.map((run, index) => {
    const box = el("section", { class: "map" }, manifest.runs.length > 1 ? el("h2", {}, run.name, el("small", {}, index ? "" : "")) : null);
    byId("maps").append(box);
    return new HeatMap(box, (line, step, event) => {
      const one = lines[index][line];
      const label = one.cells.family.rows[one.row];
      if (event.shiftKey && state.row) state.pins.push([index, state.family, state.row, state.rank]);
      choose(index, label, step, one.rank);
    }, (line, step, event) => showTip(line, step, index, event));
  });
  const wanted = ["grad_reduced", "actv", "grad_unreduced"];
  state.family = wanted.find((name) => familyNames().includes(name)) ?? familyNames()[0];
  state.op = opsOf(state.family)[0];
  const isAsked = readAddress();
  showHead();
  showAlerts();
  onTheme(() => void showMaps());
  addEventListener("keydown", onKey);
  new ResizeObserver(() => void showLines()).observe(byId("plot"));
  const withAlerts = manifest.runs.findIndex((run) => run.alerts.length);
  if (!isAsked && manifest.difference) {
    const { family, name, step, rank } = manifest.difference;
    return jump(0, family, name || "(root)", step, rank);
  }
  if (!isAsked && withAlerts >= 0) return jumpToAlert(0);
  state.row ||= manifest.runs[0].families.find((one) => one.name === state.family)?.rows[0] ?? "";
  showBar();
  void showMaps();
}

try {
  start();
} catch (error) {
  byId("head").replaceChildren(el("h1", {}, String(error)));
  throw error;
}
