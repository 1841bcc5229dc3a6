// Panes and columns that are made wider or narrower with the mouse or with arrow keys.

/**
 * A bar between two parts.
 * @param {string} id @param {string} label @param {() => DOMRect} around what the share is of @param {(share: number) => void} set @param {number} first share in percent
 */
function divider(id, label, around, set, first) {
  let now = first;
  const bar = el("div", { class: id, role: "separator", tabindex: "0", "aria-orientation": "vertical", "aria-label": label, title: label, "aria-valuemin": 15, "aria-valuemax": 85 });
  /** @param {number} share */
  function go(share) {
    now = Math.max(15, Math.min(85, share));
    set(now);
    bar.setAttribute("aria-valuenow", String(Math.round(now)));
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
  bar.setAttribute("aria-valuenow", String(first));
  return bar;
}

/** @param {string} name @param {string} value */
const setSize = (name, value) => document.documentElement.style.setProperty(name, value);

/** The bar between the rows and the details. */
function makeSplit() {
  const bar = divider("", TEXTS.split, () => byId("main").getBoundingClientRect(), (share) => setSize("--detail", `${100 - share}%`), 57);
  bar.id = "split";
  return bar;
}

/** The bar between the columns of both runs. */
const makeColumnBar = () => divider("column", TEXTS.columns, () => byId("outline").getBoundingClientRect(), (share) => setSize("--left", String(share / 100)), 57);
