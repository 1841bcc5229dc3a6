// The error along the execution, a bar for each column of pixels: the whole run at one glance, and a way to get around.

/** Levels of overflow from which on a value is not finite, and the one of the call that made it of finite ones. */
const [FIRST_LEVEL, MADE_LEVEL] = [3, 5];
/** Bars, drawn again only when rows or width change. @type {HTMLCanvasElement | null} */
let bars = null;

const plot = () => /** @type {HTMLCanvasElement} */ (byId("plot"));
/** How high a bar is, from 0 to 1. @param {number} error */
const height = (error) => (error > 0 ? Math.max(0.06, placeOn(error)) : 0.04);

function drawBars() {
  const canvas = plot();
  const { rows } = state;
  const made = document.createElement("canvas");
  const [width, high] = [(made.width = canvas.width), (made.height = canvas.height)];
  const brush = /** @type {CanvasRenderingContext2D} */ (made.getContext("2d"));
  const styles = getComputedStyle(document.documentElement);
  const shades = { forward: "--forward", backward: "--backward", optimizer: "--optimizer" };
  const colours = state.manifest.statuses.map((one) => styles.getPropertyValue(`--${one.colour}`));
  const [bad, follows, hint] = ["--bad", "--neutral", "--line"].map((name) => styles.getPropertyValue(name));
  const distances = Array.from({ length: SHADES + 1 }, (_, at) => styles.getPropertyValue(`--d${at}`));
  const alone = rows.columns.golden === 0;
  const { level } = rows.columns;
  const { measured } = rows.info;
  for (let column = 0; column < width; column++) {
    const from = Math.floor((column / width) * rows.length);
    const to = Math.max(from + 1, Math.floor(((column + 1) / width) * rows.length));
    let [worst, most] = [from, -1];
    for (let row = from; row < to; row++) {
      const order = alone ? level[row] : rows.status[row] * 1000 + height(distanceOf(rows, row));
      if (order > most) [worst, most] = [row, order];
    }
    const error = distanceOf(rows, worst);
    brush.fillStyle = styles.getPropertyValue(shades[/** @type {"forward"} */ (partOf(worst))]);
    brush.fillRect(column, 0, 1, high);
    if (alone) {
      const tall = (level[worst] >= FIRST_LEVEL ? 0.8 : level[worst] ? 0.15 : 0.04) * (high - 4);
      brush.fillStyle = level[worst] === MADE_LEVEL ? bad : level[worst] ? follows : hint;
      brush.fillRect(column, high - tall, 1, tall);
      continue;
    }
    const { problem } = state.manifest.statuses[rows.status[worst]];
    const tall = Math.max(height(error), problem ? 0.2 : 0) * (high - 4);
    brush.fillStyle = measured ? distances[shadeOf(error)] ?? hint : colours[rows.status[worst]];
    brush.fillRect(column, high - tall, 1, tall);
    if (!measured || !problem) continue;
    brush.fillStyle = colours[rows.status[worst]];
    brush.fillRect(column, 0, 1, 0.15 * high);
  }
  bars = made;
}

function drawPlot() {
  const canvas = plot();
  const { rows } = state;
  if (!rows || !canvas.clientWidth) return;
  const ratio = devicePixelRatio || 1;
  const [width, high] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (!width) return;
  if (canvas.width !== width || canvas.height !== high) [canvas.width, canvas.height, bars] = [width, high, null];
  if (!bars) drawBars();
  const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const styles = getComputedStyle(document.documentElement);
  brush.drawImage(/** @type {HTMLCanvasElement} */ (bars), 0, 0);
  drawScale(brush, width, high, ratio);
  /** @param {number} row */
  const at = (row) => ((row + 0.5) / rows.length) * width;
  if (filter.from >= 0) {
    brush.fillStyle = styles.getPropertyValue("--veil");
    brush.fillRect(0, 0, at(filter.from), high);
    brush.fillRect(at(filter.to), 0, width, high);
  }
  brush.fillStyle = styles.getPropertyValue("--text");
  brush.fillRect(at(state.selected) - ratio, 0, 2 * ratio, high);
  const marked = rows.info.first ?? (rows.columns.golden === 0 ? rows.info.nonfinite : null);
  if (marked !== null) {
    const [x, size] = [at(marked), 7 * ratio];
    brush.fillStyle = styles.getPropertyValue("--bad");
    brush.beginPath();
    brush.moveTo(x - size, 0);
    brush.lineTo(x + size, 0);
    brush.lineTo(x, size * 1.4);
    brush.fill();
  }
}

/** Where the optimizer's calls are, which have no names of their own: first and last row. @type {WeakMap<Rows, [number, number][]>} */
const optimizerRows = new WeakMap();
/** The part of a step that a row belongs to. @param {number} row */
function partOf(row) {
  const { rows } = state;
  let ranges = optimizerRows.get(rows);
  if (!ranges) {
    const found = rows.children(rows.length - 1).filter((child) => directionOf(rows.name(child)) === "optimizer");
    optimizerRows.set(rows, (ranges = found.map((child) => [rows.first[child], child])));
  }
  return ranges.some(([first, last]) => row >= first && row <= last) ? "optimizer" : directionOf(rows.name(row));
}

/** Lines at powers of ten, and the names of the parts of a step. @param {CanvasRenderingContext2D} brush @param {number} width @param {number} high @param {number} ratio */
function drawScale(brush, width, high, ratio) {
  const styles = getComputedStyle(document.documentElement);
  const { rows } = state;
  brush.font = `${10 * ratio}px system-ui, sans-serif`;
  /** A text that is read on bars, too. @param {string} text @param {number} x @param {number} y */
  const write = (text, x, y) => {
    brush.fillStyle = styles.getPropertyValue("--back");
    brush.globalAlpha = 0.85;
    brush.fillRect(x - 2 * ratio, y - 10 * ratio, brush.measureText(text).width + 4 * ratio, 13 * ratio);
    brush.globalAlpha = 1;
    brush.fillStyle = styles.getPropertyValue("--soft");
    brush.fillText(text, x, y);
  };
  if (rows.columns.golden !== 0) {
    for (const power of [-6, -4, -2]) {
      brush.fillStyle = styles.getPropertyValue("--line");
      brush.fillRect(0, high - placeOn(10 ** power) * (high - 4), width, ratio);
    }
  }
  let [from, part] = [0, ""];
  for (let row = 0; row <= rows.length; row += Math.max(1, Math.floor(rows.length / 400))) {
    const here = row < rows.length ? partOf(row) : "";
    const x = (row / rows.length) * width;
    if (here === part) continue;
    if (part && x - from > 60 * ratio) write(TEXTS.directions[/** @type {"forward"} */ (part)], from + 4 * ratio, 11 * ratio);
    [from, part] = [x, here];
  }
  if (part && width - from > 60 * ratio) write(TEXTS.directions[/** @type {"forward"} */ (part)], from + 4 * ratio, 11 * ratio);
}

/** What stands under the pointer. @param {PointerEvent} event */
function hoverPlot(event) {
  const { rows } = state;
  const row = worstNear(event.offsetX / plot().clientWidth);
  const [status, level] = [state.manifest.statuses[rows.status[row]], state.manifest.levels[rows.columns.level[row]]];
  const said = [status.name, level, ...[[TEXTS.in, rows.in[row]], [TEXTS.out, rows.out[row]]].map(([name, value]) => (Number.isNaN(value) ? "" : `${name} ${shortNumber(Number(value))}`))];
  const box = byId("hover");
  box.replaceChildren(el("b", {}, rows.name(row)), ` ${said.filter(Boolean).join(" · ")}`);
  box.hidden = false;
  box.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${event.clientY + 16}px`;
}

/** The worst row near a place of the plot. @param {number} x from 0 to 1 */
function worstNear(x) {
  const { rows } = state;
  const width = plot().clientWidth;
  const from = Math.max(0, Math.floor((x - 2 / width) * rows.length));
  const to = Math.min(rows.length - 1, Math.ceil((x + 2 / width) * rows.length));
  let best = Math.min(rows.length - 1, Math.floor(x * rows.length));
  const of = rows.columns.golden === 0 ? rows.columns.level : rows.status;
  for (let row = from; row <= to; row++) if (of[row] > of[best]) best = row;
  return best;
}

function startPlot() {
  const canvas = plot();
  let start = -1;
  /** @param {PointerEvent} event */
  const place = (event) => Math.min(1, Math.max(0, event.offsetX / canvas.clientWidth));
  document.body.append(el("div", { id: "hover", hidden: true }));
  canvas.addEventListener("pointerleave", () => (byId("hover").hidden = true));
  canvas.setAttribute("aria-label", TEXTS.plot);
  canvas.setAttribute("role", "img");
  canvas.addEventListener("pointerdown", (event) => {
    start = place(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    hoverPlot(event);
    if (start < 0 || Math.abs(place(event) - start) * canvas.clientWidth < 5) return;
    const ends = [start, place(event)].sort((one, other) => one - other);
    [filter.from, filter.to] = ends.map((x) => Math.min(state.rows.length - 1, Math.floor(x * state.rows.length)));
    drawPlot();
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = Math.abs(place(event) - start) * canvas.clientWidth >= 5;
    if (moved) applyFilter();
    else reveal(worstNear(place(event)));
    start = -1;
  });
  let anchor = -1;
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const { rows, selected } = state;
    const to = Math.max(0, Math.min(rows.length - 1, selected + by * Math.ceil(rows.length / 200)));
    if (event.shiftKey) {
      if (filter.from < 0 || (anchor !== filter.from && anchor !== filter.to)) anchor = selected;
      [filter.from, filter.to] = [Math.min(anchor, to), Math.max(anchor, to)];
      applyFilter();
    }
    select(to);
  });
  new ResizeObserver(drawPlot).observe(canvas);
}
