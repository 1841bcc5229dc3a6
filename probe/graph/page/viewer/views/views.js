// What the second views have in common: their texts, and a list of any length.

const VIEW_TEXTS = {
  matrix: "Ranks and steps", worst: "Enter opens a comparison.", unpaired: "Without a partner",
  several: "Several targets", firsts: "First divergence", noFirst: "none", sorted: "sorted by {0}", order: "execution order", alone: "{0} calls of {1} alone are not in this list.", noPartner: "no partner",
  boxes: "Boxes", arcs: "An arc leads from what made a tensor to what takes it; those of the chosen box are strong.", more: "{0} more rows: open a smaller box.", up: "Up",
  boxKeys: "Enter or double click opens a box, Backspace goes out, + and − or the wheel zoom, drag pans.", tooMany: "{0} boxes, {1} arcs",
  pairs: "Pair by hand", markTarget: "Mark target", markGolden: "Pair with golden", descendants: "with descendants", undo: "Undo", unpair: "Unpair", exportPairs: "Export JSON",
  anew: "These pairs are kept for export only: the judgement on this page is that of the run. It is made anew by msprobe graph_visualize … --pairs pairs.json",
  marked: "Marked: {0}. Choose the golden run's row and pair.", noTarget: "The chosen row has no call of the target.", noGolden: "The chosen row has no call of the golden run.",
  unmarked: "Mark a row of the target first.", paired: "Paired by hand: {0} with {1}", noPairs: "No pairs yet.", replaced: "A pair of one of the two is replaced.",
  overflow: "Overflow", finite: "all values are finite", notFinite: "has values that are not finite",
  levels: { saturated: "a value is at the limit of its dtype; a hint", growth: "an output has more than 100 times the norm of the inputs; a hint, normal for rsqrt and sqrt",
    medium: "an input is not finite, the outputs are", high: "inputs and outputs are not finite: it was passed on", critical: "all inputs are finite, or -inf as masks are, and an output is not: it was made here" }, calls: "in order of execution", firstNonfinite: "First non-finite value", noOverflow: "No row has this level.", allFinite: "Neither a NaN nor an infinity was recorded.", onlyGolden: "All values of the target are finite; this is the first one of the golden run that is not.", where: "step {0}, rank {1}", sides: "{0}: target {1}, golden {2}",
};

/** The name of a run without the folders that all runs have in common. @param {string} run */
function runName(run) {
  const parts = run.split("/");
  const others = state.manifest.comparisons.map((one) => one.run.split("/"));
  let same = 0;
  while (same < parts.length - 1 && others.every((other) => other.length > same + 1 && other[same] === parts[same])) same++;
  return parts.slice(same).join("/");
}

/** How a comparison is called among others. @param {Comparison} info */
const placeOf = ({ run, step, rank, place }) =>
  [runName(run), step === null ? "" : `${TEXTS.step} ${step}`, rank === null ? "" : `${TEXTS.rank} ${rank}`, place].filter(Boolean).join(", ");

/**
 * A list of which only the lines in sight are elements.
 * @param {string} label @param {(line: number) => HTMLElement} draw @param {(line: number) => void} choose
 */
function longList(label, draw, choose) {
  let [count, current, frame] = [0, 0, 0];
  const layer = el("div", { class: "long-lines", role: "presentation" });
  const space = el("div", { class: "long-space", role: "presentation" }, layer);
  const box = el("div", { class: "long", role: "listbox", tabindex: "0", "aria-label": label }, space);
  const id = `l${Math.random().toString(36).slice(2)}-`;
  const later = () => void (frame ||= requestAnimationFrame(now));
  function now() {
    frame = 0;
    // The height of an element has a limit: the place of the scroll bar is mapped to lines.
    const inSight = box.clientHeight / ROW;
    const hidden = space.offsetHeight - box.clientHeight;
    const top = hidden <= 0 ? 0 : (box.scrollTop / hidden) * (count - inSight);
    const from = Math.max(0, Math.floor(top) - 3);
    const made = [];
    for (let line = from; line < Math.min(count, top + inSight + 3); line++) {
      const one = draw(line);
      one.id = id + line;
      one.role = "option";
      one.ariaSelected = String(line === current);
      one.ariaSetSize = String(count);
      one.ariaPosInSet = String(line + 1);
      one.dataset.line = String(line);
      made.push(one);
    }
    layer.style.transform = `translateY(${box.scrollTop - (top - from) * ROW}px)`;
    layer.replaceChildren(...made);
    box.setAttribute("aria-activedescendant", id + current);
  }
  /** @param {number} line */
  function go(line) {
    current = Math.max(0, Math.min(count - 1, line));
    const inSight = box.clientHeight / ROW;
    const hidden = space.offsetHeight - box.clientHeight;
    const top = hidden <= 0 ? 0 : (box.scrollTop / hidden) * (count - inSight);
    const wanted = current < top ? current : current > top + inSight - 1 ? current - inSight + 1 : top;
    if (wanted !== top) box.scrollTop = (wanted / (count - inSight)) * hidden;
    later();
  }
  box.addEventListener("scroll", later);
  box.addEventListener("click", (event) => {
    const line = /** @type {HTMLElement} */ (event.target).closest("[data-line]");
    if (line) choose(Number(line.getAttribute("data-line")));
  });
  box.addEventListener("keydown", (event) => {
    const page = Math.floor(box.clientHeight / ROW) - 1;
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -count, End: count };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" && current < count) choose(current);
    else if (event.key in steps) go(current + steps[event.key]);
    else return;
    event.preventDefault();
  });
  return {
    box, draw: later,
    go,
    /** The list is another one, of so many lines. @param {number} length */
    reset(length) {
      count = length;
      space.style.height = `${Math.min(count, MOST_ROWS) * ROW}px`;
      box.scrollTop = 0;
      go(0);
    },
  };
}

/** @param {string} text @param {() => void} run @param {Record<string, any>} [set] */
const button = (text, run, set = {}) => el("button", { type: "button", onclick: run, ...set }, text);

// A view that is shown while another comparison is chosen shows that one.
onComparison(() => queueMicrotask(() => {
  const view = views.find(({ key }) => key === state.view);
  if (!view) return;
  if (!view.isAvailable()) return show("outline");
  const container = byId("view");
  const isInside = container.contains(document.activeElement);
  view.unmount();
  container.replaceChildren();
  view.mount(container);
  if (isInside) /** @type {HTMLElement | null} */ (container.querySelector("button, [tabindex='0']"))?.focus();
}));

/** Opens a row of a comparison in the outline. @param {number} k @param {number} [row] */
async function openInOutline(k, row) {
  if (k !== state.rows.k && !(await openComparison(k, row))) return;
  if (state.view !== "outline") show("outline");
  if (row !== undefined) reveal(row);
}
