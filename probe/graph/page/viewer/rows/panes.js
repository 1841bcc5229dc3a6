// Panes and columns that are made wider or narrower with the mouse or with arrow keys. The next page has them as well.

/**
 * A bar between two parts.
 * @param {string} name under which the share is kept @param {string} label @param {() => DOMRect} around what the share is of @param {(share: number) => void} set
 */
function divider(name, label, around, set) {
  const [first, key] = [57, `probe-${name}`];
  let now = first;
  const bar = el("div", { id: name, role: "separator", tabindex: "0", "aria-orientation": "vertical", "aria-label": label, title: label, "aria-valuemin": 15, "aria-valuemax": 85, "aria-valuenow": first });
  /** @param {number} share in percent */
  function put(share) {
    now = Math.max(15, Math.min(85, share));
    set(now);
    bar.setAttribute("aria-valuenow", String(Math.round(now)));
  }
  /** @param {number} share */
  function go(share) {
    put(share);
    keep(key, String(now));
    drawOutline();
  }
  bar.addEventListener("pointerdown", (event) => {
    bar.setPointerCapture(event.pointerId);
    event.preventDefault();
    event.stopPropagation();
  });
  bar.addEventListener("pointermove", (event) => {
    if (!bar.hasPointerCapture(event.pointerId)) return;
    const { left, width } = around();
    go(((event.clientX - left) / width) * 100);
  });
  bar.addEventListener("dblclick", () => go(first));
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    go(now + by);
  });
  const before = Number.parseFloat(kept(key) ?? "");
  if (before) put(before);
  return bar;
}

/** @param {string} name @param {string} value */
const setSize = (name, value) => document.documentElement.style.setProperty(name, value);

/** The bar between the rows and the details. */
const makeSplit = () => divider("split", TEXTS.split, () => byId("main").getBoundingClientRect(), (share) => setSize("--detail", `${100 - share}%`));

/** The bar between the columns of both runs. */
const makeColumnBar = () => divider("column", TEXTS.columns, () => byId("outline").getBoundingClientRect(), (share) => setSize("--left", String(share / 100)));
