// What is looked at, and who wants to know when that changes. Everything else on the page hangs on this file.

/**
 * @typedef {{key: string, name: string, isAvailable(): boolean, mount(container: HTMLElement): void, unmount(): void}} View
 * @typedef {{key: string, name: string, run(): void}} Action
 */

/** Read by everybody, written here only. */
const state = {
  /** @type {Manifest} */ manifest: /** @type {any} */ (null),
  /** The comparison that is shown. @type {Rows} */ rows: /** @type {any} */ (null),
  /** The chosen row; -1 before there is one. */ selected: -1,
  /** The key of the view that is shown. */ view: "outline",
};
/** @type {View[]} */
const views = [];
/** @type {Action[]} */
const actions = [];
/** @type {((row: number) => void)[]} */
const selectListeners = [];
/** @type {(() => void)[]} */
const comparisonListeners = [];

/** A view beside the outline; it gets a button where it is available. @param {View} view */
const registerView = (view) => void views.push(view);
/** A key and what it does; the help lists it. @param {Action} action */
const registerAction = (action) => void actions.push(action);
/** @param {(row: number) => void} listener */
const onSelect = (listener) => void selectListeners.push(listener);
/** @param {() => void} listener */
const onComparison = (listener) => void comparisonListeners.push(listener);

/** The class that colours a status. @param {number} status */
const tone = (status) => `s-${state.manifest.statuses[status].colour}`;

/** What a status means; where no values were compared, that. @param {number} status */
const hintOf = (status) => {
  const { colour, hint } = state.manifest.statuses[status];
  return colour === "good" && state.rows?.info.mode === "structure" ? TEXTS.sameCalls : hint;
};

/** A letter in the colour of its status. @param {number} status @param {string} [text] */
const badge = (status, text) => {
  const { letter, name } = state.manifest.statuses[status];
  return el("span", { class: `badge ${tone(status)}`, title: `${name}: ${hintOf(status)}` }, text ?? letter);
};

/** A name that fits into a line: of a very long one the beginning and the end. @param {string} name @param {number} [most] */
const shortName = (name, most = 160) => (name.length > most ? `${name.slice(0, most * 0.6)}…${name.slice(-most * 0.35)}` : name);

/** A name as it is shown: parts that are written from the right keep their places. @param {string} name @returns {(Node | string)[]} */
const nameText = (name) => (/[\u0590-\u08ff\ufb1d-\ufefc]/.test(name) ? name.split(/(\.)/).map((part) => (part === "." ? part : el("bdi", {}, part))) : [name]);

/** A relative difference as it is shown. @param {number} value */
const shortNumber = (value) =>
  Number.isNaN(value) ? "" : value === 0 ? "0" : value >= DIFFERS && Number.isFinite(value) ? TEXTS.differs : !Number.isFinite(value) ? "inf" : value < 1e-2 || value >= 1e4 ? value.toExponential(1) : value.toPrecision(3);

/** Chooses a row: everything that shows rows follows. @param {number} row */
function select(row) {
  if (row < 0 || row >= state.rows.length) return;
  state.selected = row;
  for (const listener of selectListeners) listener(row);
  writeAddress();
}

/** Shows a view; the outline where it is shown already. @param {string} key */
function show(key) {
  const wanted = key === state.view || !views.some((view) => view.key === key && view.isAvailable()) ? "outline" : key;
  const focused = document.activeElement;
  views.find((view) => view.key === state.view)?.unmount();
  state.view = wanted;
  const container = byId("view");
  container.replaceChildren();
  byId("outline").hidden = wanted !== "outline";
  container.hidden = wanted === "outline";
  views.find((view) => view.key === wanted)?.mount(container);
  showTabs();
  if (wanted === "outline") intoSight();
  // What had the focus may be gone, and keys would lead nowhere.
  if (focused?.isConnected && focused !== document.body && !focused.closest("[hidden]")) return;
  const next = wanted === "outline" ? scroller() : /** @type {HTMLElement | null} */ (container.querySelector("[aria-current=true], [tabindex='0']") ?? container.querySelector("button"));
  next?.focus();
}

let openings = 0;

/**
 * Shows a comparison, at a row of it or where it first diverges; of several that are asked for the last one. Whether it is shown.
 * @param {number} k @param {number} [row] @param {URLSearchParams} [asked] the filters that a link asks for
 */
async function openComparison(k, row, asked) {
  const mine = ++openings;
  try {
    const rows = await readRows(k);
    if (mine !== openings) return false;
    state.rows = rows;
    state.selected = -1;
    [filter.from, filter.to, found, hits, searched, badSearch, passed, bars] = [-1, -1, null, [], "", "", null, null];
    const wrong = asked ? readFilters(asked) : [];
    const offered = choices();
    for (const key of CHOICES) if (!offered[key].some(([value]) => value === filter[key])) filter[key] = "";
    showHead();
    showBar();
    openFirst();
    for (const listener of comparisonListeners) listener();
    select(row ?? firstBad() ?? rows.info.suspects[0] ?? 0);
    for (const text of wrong) showError(text);
    if (filter.query) await search();
    return mine === openings;
  } catch (error) {
    if (mine === openings) showError(error);
    const picker = /** @type {HTMLSelectElement | null} */ (document.getElementById("comparison"));
    if (picker) picker.value = String(state.rows.k);
    return false;
  }
}

// --- what stands above the rows -------------------------------------------------------------------------------------

/** @param {number} status */
function toggleStatus(status) {
  if (!filter.hide.delete(status)) filter.hide.add(status);
  showHead();
  applyFilter();
}

function clearFilter() {
  filter.hide.clear();
  [filter.from, filter.to, filter.only] = [-1, -1, false];
  for (const key of CHOICES) filter[key] = "";
  showHead();
  showBar();
  applyFilter();
}

/** Clears the search, the filters and the range. */
function clearAll() {
  if (filter.query) clearSearch();
  if (isFiltered() || filter.only) clearFilter();
}

/** The choices of each filter, as `[value, text]`. @returns {Record<string, [string, string][]>} */
function choices() {
  const { manifest, rows } = state;
  /** @param {string[]} texts @returns {[string, string][]} */
  const numbered = (texts) => texts.map((text, at) => /** @type {[string, string]} */ ([String(at), text])).filter(([, text]) => text);
  const two = rows.columns.golden !== 0;
  const levels = rows.columns.level.some(Boolean) || rows.columns.golden_level?.some?.(Boolean);
  return {
    kind: Object.entries(TEXTS.kinds), direction: Object.entries(TEXTS.directions),
    level: levels ? numbered(manifest.levels) : [], reason: two ? numbered(manifest.reasons) : [],
    side: two ? Object.entries(TEXTS.sides) : [],
    micro: rows.columns.micro ? Array.from({ length: rows.info.micro_steps }, (_, at) => [String(at), String(at)]) : [],
  };
}

function showBar() {
  const { manifest } = state;
  const offered = choices();
  const named = /** @type {Record<string, any>} */ (TEXTS);
  /** @param {Event} event */
  const value = (event) => /** @type {HTMLInputElement} */ (event.target).value;
  let waiting = 0;
  byId("bar").replaceChildren(
    ...(manifest.comparisons.length > 1
      ? [el("select", { "aria-label": TEXTS.comparison, id: "comparison", onchange: (/** @type {Event} */ event) => openComparison(+value(event)) },
          ...manifest.comparisons.map((one, k) => el("option", { value: k, selected: k === state.rows.k }, placeOf(one) || `${TEXTS.comparison} ${k}`)))]
      : []),
    el("input", {
      id: "search", placeholder: TEXTS.search, "aria-label": TEXTS.search, value: filter.query,
      oninput: (/** @type {Event} */ event) => {
        filter.query = value(event);
        clearTimeout(waiting);
        waiting = setTimeout(search, 60);
      },
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter") clearTimeout(waiting), nextHit(event.shiftKey ? -1 : 1);
        if (event.key === "Escape") clearTimeout(waiting);
      },
    }),
    el("button", { id: "unsearch", onclick: clearSearch, title: TEXTS.unsearch, "aria-label": TEXTS.unsearch }, "×"), el("output", { id: "hits" }),
    el("label", {}, el("input", { type: "checkbox", id: "only", checked: filter.only, onchange: (/** @type {any} */ event) => ((filter.only = event.target.checked), applyFilter()) }), TEXTS.onlyHits),
    el("span", { class: "group" }, TEXTS.open,
      ...[1, 2, 3].map((level) => el("button", { title: `${TEXTS.open} ${fill(TEXTS.openTo, level)}`, onclick: () => openTo(level) }, String(level))),
      el("button", { id: "all", onclick: () => openTo(999) }, TEXTS.openAll), el("button", { class: "judged", onclick: openProblems, title: TEXTS.pathToProblems }, TEXTS.openProblems)),
    el("details", { class: "menu" }, el("summary", {}, TEXTS.filters),
      el("div", {}, ...CHOICES.filter((key) => offered[key].length).map((key) =>
        el("label", {}, `${named[key]} `, el("select", { "data-filter": key, onchange: (/** @type {Event} */ event) => ((filter[key] = value(event)), applyFilter()) },
          el("option", { value: "" }, TEXTS.any), ...offered[key].map(([one, text]) => el("option", { value: one, selected: filter[key] === one }, text))))))),
    el("output", { id: "range" }), el("output", { id: "count" }),
    el("button", { id: "clear", hidden: !isFiltered() && !filter.only, onclick: clearFilter }, TEXTS.clear), el("button", { onclick: downloadCsv }, TEXTS.csv), el("button", { onclick: copyPicture, title: TEXTS.picture }, TEXTS.pictureShort),
    el("span", { id: "tabs", class: "group" }),
    el("button", { onclick: changeTheme, title: TEXTS.theme, "aria-label": TEXTS.theme }, "◐"), el("button", { onclick: showHelp, title: TEXTS.help, "aria-label": TEXTS.help }, "?")
  );
  showTabs();
}

function clearSearch() {
  /** @type {HTMLInputElement} */ (byId("search")).value = filter.query = "";
  void search();
  scroller().focus();
}

/** The buttons of the views that this comparison has. */
function showTabs() {
  const offered = [{ key: "outline", name: TEXTS.outline }, ...views.filter((view) => view.isAvailable())];
  byId("tabs")?.replaceChildren(
    ...(offered.length > 1 ? offered : []).map(({ key, name }) => el("button", { "data-view": key, "aria-pressed": String(key === state.view), onclick: () => key !== state.view && show(key) }, name))
  );
}

onTheme(() => {
  bars = null;
  if (state.rows) drawPlot();
});

// --- getting around -------------------------------------------------------------------------------------------------

/** The first divergence; by rules that name none the first row with the worst status, or the first value that is not finite. */
function firstBad() {
  const { info, status, worst, length } = state.rows;
  const most = worst[length - 1];
  return info.first ?? (state.manifest.statuses[most].colour === "bad" ? status.indexOf(most) : info.nonfinite);
}

/** The first divergence of all comparisons, from the page of any of them. */
function firstOfAll() {
  const { first, comparisons } = state.manifest;
  const k = first ?? comparisons.findIndex((one) => one.first !== null);
  if (k < 0) say(TEXTS.noFirst);
  else void openInOutline(k, comparisons[k].first ?? undefined);
}

function firstDivergence() {
  const row = firstBad();
  if (row === null) say(TEXTS.noFirst);
  else reveal(row);
}

/** Goes to the next row, in order of execution, whose status is wanted. @param {number} by @param {(status: Status) => boolean} wanted */
function nextRow(by, wanted) {
  const { rows, selected } = state;
  const stops = state.manifest.statuses.map(wanted);
  let row = selected + by;
  while (row >= 0 && row < rows.length && !(stops[rows.status[row]] && passes(row))) row += by;
  if (row < 0 || row >= rows.length) say(TEXTS.noMore);
  else reveal(row);
}

/** @param {number} row */
const passes = (row) => !passed || passed[row + 1] > passed[row];
/** @param {Status} status */
const isUnexplained = ({ colour }) => colour === "warn" || colour === "bad";

for (const [key, run] of /** @type {[string, () => void][]} */ ([
  ["/", () => byId("search").focus()], ["f", firstDivergence], ["F", firstOfAll],
  ["n", () => nextRow(1, (one) => one.problem)], ["p", () => nextRow(-1, (one) => one.problem)],
  ["]", () => nextRow(1, isUnexplained)], ["[", () => nextRow(-1, isUnexplained)],
  ["c", () => copyName()], ["b", () => show("boxes")], ["?", () => showHelp()],
])) {
  registerAction({ key, name: "", run });
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || !state.rows) return;
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) return clearAll();
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) || document.querySelector("dialog[open]")) return;
  const action = actions.findLast((one) => one.key === event.key);
  if (action) action.run();
  else if (/^[1-9]$/.test(event.key) && state.manifest.statuses[+event.key]) toggleStatus(+event.key);
  else if (event.key === "Enter" && target === document.body) nextHit(event.shiftKey ? -1 : 1);
  // Behind a click on a button the arrows walk on.
  else if (/^(Arrow|Page|Home|End)/.test(event.key) && !event.defaultPrevented && state.view === "outline" && (target === document.body || target.tagName === "BUTTON")) {
    scroller().focus();
    outlineKey(event);
  } else return;
  event.preventDefault();
}

function showHelp() {
  const own = actions.filter((one) => one.name).map(({ key, name }) => /** @type {[string, string]} */ ([key, name]));
  const { statuses } = state.manifest;
  const two = statuses.some((one) => one.letter);
  const rows = new Map([...Object.entries(TEXTS.keys), ...(two ? [/** @type {[string, string]} */ ([`1 – ${statuses.length - 1}`, TEXTS.hide])] : []), ...own]);
  const dialog = /** @type {HTMLDialogElement} */ (
    el("dialog", { onclose: () => dialog.remove() }, el("h2", {}, TEXTS.help),
      el("dl", {}, ...[...rows].flatMap(([key, name]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, name)])),
      el("dl", { class: "judged" }, ...statuses.flatMap(({ name }, status) => [el("dt", {}, status > 0 && el("kbd", {}, String(status)), " ", badge(status)), el("dd", {}, `${name}: ${hintOf(status)}`)])),
      el("form", { method: "dialog" }, el("button", {}, "OK")))
  );
  document.body.append(dialog);
  dialog.showModal();
}

// --- the address ----------------------------------------------------------------------------------------------------

let addressWaits = 0;
/** The part of the address behind "#" that was read or written last. */
let addressKnown = "";

/** Puts what is shown into the address, so that a link or a reload shows it again. */
function writeAddress() {
  // Browsers refuse hundreds of changes in a few seconds, which walking with a held key makes.
  clearTimeout(addressWaits);
  addressWaits = setTimeout(() => {
    // A link was followed a moment ago, and its event has not come: it never comes if the address is replaced now.
    if (location.hash !== addressKnown) return void readAddress(location.href);
    const found = new URLSearchParams();
    found.set("node", state.rows.name(state.selected));
    if (state.rows.k !== (state.manifest.first ?? 0)) found.set("c", String(state.rows.k));
    if (filter.query) found.set("q", filter.query);
    if (filter.only) found.set("only", "1");
    if (filter.hide.size) found.set("hide", [...filter.hide].sort().join(" "));
    if (filter.from >= 0) found.set("range", `${filter.from} ${filter.to}`);
    for (const key of CHOICES) if (filter[key]) found.set(key, filter[key]);
    history.replaceState(null, "", `#${found}`);
    addressKnown = location.hash;
  }, 100);
}

/** Sets the filters that a link asks for; gives back a sentence for each that is none here. @param {URLSearchParams} asked */
function readFilters(asked) {
  const { rows, manifest } = state;
  const offered = choices();
  /** @type {string[]} */
  const wrong = [];
  /** Parts of the address as numbers below a limit; none where it has others. @param {string} key @param {number} limit */
  const numbers = (key, limit) => {
    const found = (asked.get(key) ?? "").split(" ").filter(Boolean).map(Number);
    if (found.every((one) => Number.isInteger(one) && one >= 0 && one < limit)) return found;
    wrong.push(key);
    return [];
  };
  filter.hide = new Set(numbers("hide", manifest.statuses.length));
  const range = numbers("range", rows.length);
  if (range.length === 2 && range[0] <= range[1]) [filter.from, filter.to] = range;
  else if (range.length) wrong.push("range");
  for (const key of CHOICES) {
    filter[key] = asked.get(key) ?? "";
    if (filter[key] && !offered[key].some(([value]) => value === filter[key])) wrong.push(key);
  }
  return wrong.map((key) => fill(TEXTS.badLink, `${key}=${asked.get(key)}`));
}

/** Shows what an address asks for: `#node=NAME&…`, or `#NAME` alone. @param {string} address */
async function readAddress(address) {
  clearTimeout(addressWaits);
  addressKnown = new URL(address).hash;
  const text = addressKnown.slice(1);
  // What the browser cannot decode stays as it is, and then is the name of no row.
  const asked = new URLSearchParams(text.includes("=") ? text : `node=${text.replace(/[+&]/g, encodeURIComponent)}`);
  const { comparisons, first } = state.manifest;
  const [name, c] = [asked.get("node"), asked.get("c")];
  filter.query = asked.get("q") ?? "";
  filter.only = asked.has("only");
  const isHere = c === null || !!comparisons[Number(c)];
  // A page of one run alone begins where its first value is not finite; one that a command wrote, with what it found.
  const opens = first ?? (state.manifest.said?.length ? 0 : firstNonfinite()?.k) ?? 0;
  if (!(await openComparison(isHere && c !== null ? Number(c) : opens, undefined, asked))) return;
  if (!isHere) showError(fill(TEXTS.badLink, `c=${c}`));
  if (!name) return;
  const row = state.rows.find(name);
  if (row >= 0) select(row);
  else showError(fill(TEXTS.badLink, `node=${name}`));
}

/** Says what went wrong, once. @param {unknown} error */
function showError(error) {
  const text = error instanceof Error ? error.message : String(error);
  const said = [...byId("head").querySelectorAll("[role=alert]")].some((one) => one.textContent === text);
  if (!said) byId("head").append(el("p", { class: "banner bad", role: "alert" }, text));
}

async function start() {
  const setKept = () => setTheme(kept(THEME) === null ? darkSystem.matches : !!kept(THEME));
  setKept();
  darkSystem.addEventListener("change", setKept);
  // Paper is white and has another height; there is no later frame that would draw on it.
  matchMedia("print").addEventListener("change", () => {
    bars = null;
    drawPlot();
    intoSight();
    drawNow();
  });
  try {
    state.manifest = readManifest();
    const { comparisons, statuses } = state.manifest;
    if (!comparisons.length) throw new Error(TEXTS.noRows);
    // One run alone is not judged: nothing speaks of statuses then.
    if (!comparisons.some((one) => one.golden)) for (const one of statuses) one.letter = one.name = one.hint = "";
    byId("main").append(makeOutline(), el("section", { id: "view", hidden: true }), makeSplit(), el("aside", { id: "detail", tabindex: "0", "aria-label": TEXTS.items }, TEXTS.unchosen));
    for (const listener of [intoSightOf, drawPlot, showDetail, sayHits]) onSelect(listener);
    startPlot();
    document.addEventListener("keydown", pressed);
    // By now the address may be the one that was written last, not the one that was asked for.
    addEventListener("hashchange", (event) => readAddress(event.newURL));
    new ResizeObserver(drawOutline).observe(byId("scroll"));
    await readAddress(location.href);
    if (state.rows?.length < 2) byId("head").append(el("p", { class: "banner" }, TEXTS.noRows));
    // Enlarged, or in a narrow window, the verdict stays at the top.
    scroller().focus({ preventScroll: true });
    drawNow();
  } catch (error) {
    showError(error);
  }
  performance.mark("ready");
  document.documentElement.dataset.ready = "1";
}

// Behind all that the other scripts register.
queueMicrotask(start);
