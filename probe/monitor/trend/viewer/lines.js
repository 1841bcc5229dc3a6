// Lines over the steps of the rows that were chosen, with the band over the ranks.

const SHADES = { light: ["#0072b2", "#d55e00", "#009e73", "#a4508b", "#b87700", "#3a8fc4", "#6a7f93", "#c9371c"],
  dark: ["#4fb0ea", "#ff9a4d", "#33c79b", "#d692c9", "#efb340", "#8ad0f5", "#8fa5b8", "#ff7a5c"] };
/** The colour of a line. @param {number} index */
const lineColour = (index) => SHADES[isDark() ? "dark" : "light"][index % SHADES.light.length];

/**
 * @typedef {{label: string, cells: Cells, rank: number, row: number, dash: boolean}} Curve
 */

/** @param {HTMLCanvasElement} canvas @param {Curve[]} curves @param {number} marked the index of the selected step */
function drawLines(canvas, curves, marked) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width || !height) return;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  brush.scale(ratio, ratio);
  brush.font = "12px ui-monospace, Menlo, Consolas, monospace";
  brush.textBaseline = "middle";
  const styles = getComputedStyle(document.documentElement);
  const [soft, line, text] = ["--soft", "--line", "--text"].map((name) => styles.getPropertyValue(name));
  const [left, right, top, bottom] = [70, width - 10, 6, height - 20];
  let [low, high, isLog] = [Infinity, -Infinity, true];
  for (const { cells, row } of curves) {
    if (!cells.scale.log) isLog = false;
    for (let rank = 0; rank < cells.run.ranks.length; rank++)
      for (let step = 0; step < cells.steps; step++) {
        const value = cells.value(rank, row, step);
        if (value === undefined || !Number.isFinite(value)) continue;
        if (value < low && (value > 0 || !cells.scale.log)) low = value;
        if (value > high) high = value;
      }
  }
  if (!(low <= high)) [low, high] = [0, 1];
  // A range of less than three times is shown better as it is.
  isLog = isLog && low > 0 && high / low > 3;
  /** @param {number} value */
  const scaled = (value) => (isLog ? Math.log10(Math.max(value, low)) : value);
  let [from, to] = [scaled(low), scaled(high)];
  const room = (to - from) * 0.06 || Math.abs(to) * 0.05 || 1;
  [from, to] = [from - room, to + room];
  const longest = Math.max(1, ...curves.map(({ cells }) => cells.steps));
  /** @param {number} step */
  const x = (step) => left + ((step + 0.5) / longest) * (right - left);
  /** @param {number} value */
  const y = (value) => bottom - ((scaled(value) - from) / (to - from)) * (bottom - top);
  for (const mark of levels(from, to, isLog)) {
    const at = y(isLog ? 10 ** mark : mark);
    brush.fillStyle = line;
    brush.fillRect(left, at, right - left, 1);
    brush.fillStyle = soft;
    const label = isLog ? `1e${Math.round(mark * 100) / 100}` : short(mark);
    brush.fillText(label, left - brush.measureText(label).width - 6, at);
  }
  const steps = curves[0]?.cells.run.steps ?? [];
  brush.fillStyle = soft;
  for (const at of ticks(steps.length, Math.floor((right - left) / 90))) brush.fillText(String(steps[at]), x(at) - 4, height - 9);
  if (marked >= 0) {
    brush.fillStyle = text;
    brush.globalAlpha = 0.35;
    brush.fillRect(x(marked), top, 1, bottom - top);
    brush.globalAlpha = 1;
  }
  curves.forEach((curve, index) => {
    const colour = lineColour(index);
    drawBand(brush, curve, colour, x, y);
    drawCurve(brush, curve, colour, x, y, top);
  });
}

/** True if a curve has a value that a line cannot show. @param {Curve} curve */
function hasNonfinite({ cells, rank, row }) {
  for (let step = 0; step < cells.steps; step++) {
    const value = cells.value(rank, row, step);
    if (value !== undefined && !Number.isFinite(value)) return true;
  }
  return false;
}

/** Round values between two. @param {number} from @param {number} to @param {boolean} isLog */
function levels(from, to, isLog) {
  const rough = (to - from) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  let by = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough) ?? rough;
  if (isLog && to - from >= 3) by = Math.max(1, Math.ceil(by));
  const found = [];
  for (let at = Math.ceil(from / by) * by; at <= to; at += by) found.push(at);
  return found;
}

/** @param {CanvasRenderingContext2D} brush @param {Curve} curve @param {string} colour @param {(step: number) => number} x @param {(value: number) => number} y */
function drawBand(brush, { cells, row }, colour, x, y) {
  const ranks = cells.run.ranks.length;
  if (ranks < 2) return;
  /** @type {[number, number, number][]} */
  const band = [];
  for (let step = 0; step < cells.steps; step++) {
    let [low, high] = [Infinity, -Infinity];
    for (let rank = 0; rank < ranks; rank++) {
      const value = cells.value(rank, row, step);
      if (value === undefined || !Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (low <= high) band.push([step, low, high]);
  }
  if (!band.length) return;
  brush.beginPath();
  for (const [step, , high] of band) brush.lineTo(x(step), y(high));
  for (const [step, low] of band.reverse()) brush.lineTo(x(step), y(low));
  brush.closePath();
  brush.globalAlpha = 0.2;
  brush.fillStyle = colour;
  brush.fill();
  brush.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} brush @param {Curve} curve @param {string} colour @param {(step: number) => number} x @param {(value: number) => number} y @param {number} top */
function drawCurve(brush, { cells, rank, row, dash }, colour, x, y, top) {
  brush.strokeStyle = brush.fillStyle = colour;
  brush.lineWidth = 1.6;
  brush.setLineDash(dash ? [5, 4] : []);
  brush.beginPath();
  let isDown = false;
  for (let step = 0; step < cells.steps; step++) {
    const value = cells.value(rank, row, step);
    if (value === undefined) continue;
    if (!Number.isFinite(value)) {
      // A mark at the top, and a gap in the line.
      brush.fillRect(x(step) - 2, top, 4, 6);
      isDown = false;
    } else if (isDown) brush.lineTo(x(step), y(value));
    else {
      brush.moveTo(x(step), y(value));
      isDown = true;
    }
  }
  brush.stroke();
  brush.setLineDash([]);
  if (cells.steps === 1) {
    const value = cells.value(rank, row, 0);
    if (value !== undefined && Number.isFinite(value)) brush.fillRect(x(0) - 3, y(value) - 3, 6, 6);
  }
}
