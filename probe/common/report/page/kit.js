// What every page uses: texts with places, elements, and a line that is read aloud.

/** Text with its places `{0}`, `{1}` filled. @param {string} text @param {...(string | number)} values */
const fill = (text, ...values) => text.replace(/\{(\d)\}/g, (_, place) => String(values[place]));

/**
 * An element; strings become text, never markup.
 * @param {string} tag @param {Record<string, any>} [set] attributes, and `on…` listeners
 * @param {...(Node | string | null | undefined | boolean)} inside @returns {HTMLElement}
 */
function el(tag, set = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(set)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  for (const one of inside) if (one instanceof Node || typeof one === "string") made.append(one);
  return made;
}

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Tells what happened, aloud for those who do not see it. @param {string} text */
function say(text) {
  byId("say").textContent = text;
}

const THEME = "probe-theme";
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
/** @type {(() => void)[]} */
const themeListeners = [];
/** What is drawn anew when colours change. @param {() => void} listener */
const onTheme = (listener) => void themeListeners.push(listener);
/** @param {boolean} dark */
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  for (const listener of themeListeners) listener();
}
function changeTheme() {
  const dark = !isDark();
  setTheme(dark);
  keep(THEME, dark ? "dark" : "");
}

const isDark = () => document.documentElement.dataset.theme === "dark";

/** A scale from dark to light that can be told apart by the colour-blind, also in grey. */
const RISING = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

/** Red, green and blue on a scale. @param {number[][]} scale @param {number} at from 0 to 1 @returns {number[]} */
function mixed(scale, at) {
  const place = Math.min(Math.max(at, 0), 1) * (scale.length - 1);
  const below = Math.min(Math.floor(place), scale.length - 2);
  return scale[below].map((value, index) => Math.round(value + (scale[below + 1][index] - value) * (place - below)));
}

/** A colour on a scale. @param {number[][]} scale @param {number} at from 0 to 1 */
const shade = (scale, at) => `rgb(${mixed(scale, at).join()})`;

/** Keeps a choice for the next page. @param {string} name @param {string} value */
function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Some browsers keep nothing for files: the choice then lasts until the page is left.
  }
}
/** A choice that was kept; null without one. @param {string} name */
function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Packed data, unpacked. @param {string} text base64 of gzip */
function unpacked(text) {
  const letters = atob(text.trim());
  const packed = new Uint8Array(letters.length);
  // A plain loop: a function called for each of ten million letters takes a second.
  for (let at = 0; at < letters.length; at++) packed[at] = letters.charCodeAt(at);
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
}
