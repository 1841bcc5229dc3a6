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

/** Text with its places `{0}`, `{1}` filled. @param {string} text @param {...(string | number)} values */
const fill = (text, ...values) => text.replace(/\{(\d)\}/g, (_, place) => String(values[place]));

/**
 * An element; strings become text, never markup.
 * @param {string} tag @param {Record<string, any>} [set] attributes, and `on…` listeners
 * @param {...(Node | string | null | undefined | false)} inside @returns {HTMLElement}
 */
function el(tag, set = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(set)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...inside.filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Tells what happened, aloud for those who do not see it. @param {string} text */
function say(text) {
  byId("say").textContent = text;
}

/** The class that colours a status. @param {number} status */
const tone = (status) => `s-${state.manifest.statuses[status].colour}`;

/** A letter in the colour of its status. @param {number} status @param {string} [text] */
const badge = (status, text) => {
  const { letter, name, hint } = state.manifest.statuses[status];
  return el("span", { class: `badge ${tone(status)}`, title: `${name}: ${hint}` }, text ?? letter);
};

/** A relative difference as it is shown. @param {number} value */
const shortNumber = (value) =>
  Number.isNaN(value) ? "" : value === 0 ? "0" : !Number.isFinite(value) ? "inf" : value < 1e-2 || value >= 1e4 ? value.toExponential(1) : value.toPrecision(3);

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
  views.find((view) => view.key === state.view)?.unmount();
  state.view = wanted;
  const container = byId("view");
  container.replaceChildren();
  byId("outline").hidden = wanted !== "outline";
  container.hidden = wanted === "outline";
  views.find((view) => view.key === wanted)?.mount(container);
  showTabs();
  if (wanted === "outline") drawOutline();
}

/** Shows a comparison, at a row of it or where it first diverges. @param {number} k @param {number} [row] */
async function openComparison(k, row) {
  const rows = await readRows(k);
  state.rows = rows;
  state.selected = -1;
  for (const listener of comparisonListeners) listener();
  const { first, nonfinite, suspects } = rows.info;
  select(row ?? first ?? nonfinite ?? suspects[0] ?? rows.length - 1);
  showTabs();
}
