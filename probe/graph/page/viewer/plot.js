// The error along the execution, a bar for each column of pixels: the whole run at one glance, and a way to get around.

const LEAST = -8;
const MOST = 2;
/** Bars, drawn again only when rows or width change. @type {HTMLCanvasElement | null} */
let bars = null;

const plot = () => /** @type {HTMLCanvasElement} */ (byId("plot"));
/** How high a bar is, from 0 to 1. @param {number} error */
const height = (error) => (!(error > 0) ? 0.04 : Math.min(1, Math.max(0.06, (Math.log10(error) - LEAST) / (MOST - LEAST))));

function drawBars() {
  const canvas = plot();
  const { rows } = state;
  const made = document.createElement("canvas");
  const [width, high] = [(made.width = canvas.width), (made.height = canvas.height)];
  const brush = /** @type {CanvasRenderingContext2D} */ (made.getContext("2d"));
  const styles = getComputedStyle(document.documentElement);
  const shades = { forward: "--forward", backward: "--backward", optimizer: "--optimizer" };
  const colours = state.manifest.statuses.map((one) => styles.getPropertyValue(`--${one.colour}`));
  for (let column = 0; column < width; column++) {
    const from = Math.floor((column / width) * rows.length);
    const to = Math.max(from + 1, Math.floor(((column + 1) / width) * rows.length));
    let [worst, most] = [from, -1];
    for (let row = from; row < to; row++) {
      const error = Number.isNaN(rows.out[row]) ? rows.in[row] : rows.out[row];
      const order = rows.status[row] * 1000 + height(error);
      if (order > most) [worst, most] = [row, order];
    }
    const error = Number.isNaN(rows.out[worst]) ? rows.in[worst] : rows.out[worst];
    brush.fillStyle = styles.getPropertyValue(shades[/** @type {"forward"} */ (directionOf(rows.name(worst)))]);
    brush.fillRect(column, 0, 1, high);
    const tall = Math.max(height(error), state.manifest.statuses[rows.status[worst]].problem ? 0.2 : 0) * (high - 4);
    brush.fillStyle = colours[rows.status[worst]];
    brush.fillRect(column, high - tall, 1, tall);
  }
  bars = made;
}

function drawPlot() {
  const canvas = plot();
  const { rows } = state;
  if (!rows || rows.columns.golden === 0) return;
  const ratio = devicePixelRatio || 1;
  const [width, high] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (!width) return;
  if (canvas.width !== width || canvas.height !== high) [canvas.width, canvas.height, bars] = [width, high, null];
  if (!bars) drawBars();
  const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const styles = getComputedStyle(document.documentElement);
  brush.drawImage(/** @type {HTMLCanvasElement} */ (bars), 0, 0);
  /** @param {number} row */
  const at = (row) => ((row + 0.5) / rows.length) * width;
  if (filter.from >= 0) {
    brush.fillStyle = styles.getPropertyValue("--veil");
    brush.fillRect(0, 0, at(filter.from), high);
    brush.fillRect(at(filter.to), 0, width, high);
  }
  brush.fillStyle = styles.getPropertyValue("--text");
  brush.fillRect(at(state.selected) - ratio, 0, 2 * ratio, high);
  if (rows.info.first !== null) {
    const [x, size] = [at(rows.info.first), 7 * ratio];
    brush.fillStyle = styles.getPropertyValue("--bad");
    brush.beginPath();
    brush.moveTo(x - size, 0);
    brush.lineTo(x + size, 0);
    brush.lineTo(x, size * 1.4);
    brush.fill();
  }
}

/** The worst row near a place of the plot. @param {number} x from 0 to 1 */
function worstNear(x) {
  const { rows } = state;
  const width = plot().clientWidth;
  const from = Math.max(0, Math.floor((x - 2 / width) * rows.length));
  const to = Math.min(rows.length - 1, Math.ceil((x + 2 / width) * rows.length));
  let best = Math.min(rows.length - 1, Math.floor(x * rows.length));
  for (let row = from; row <= to; row++) if (rows.status[row] > rows.status[best]) best = row;
  return best;
}

function startPlot() {
  const canvas = plot();
  let start = -1;
  /** @param {PointerEvent} event */
  const place = (event) => Math.min(1, Math.max(0, event.offsetX / canvas.clientWidth));
  canvas.title = TEXTS.plot;
  canvas.setAttribute("aria-label", TEXTS.plot);
  canvas.setAttribute("role", "img");
  canvas.addEventListener("pointerdown", (event) => {
    start = place(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
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
