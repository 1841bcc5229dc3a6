// The heat map: a canvas over the part of the rows that is in sight. A column of pixels shows the worst of its steps.

const ROW = { least: 16, most: 26 };
/** Heights of the axis of steps with its title, and the width of the title of the rows. */
const [AXIS, TITLE] = [38, 28];
const LABELS = { most: 240, share: 0.42 };
const LETTER = 7.3;

/** The colours of blue, white and red, which can be told apart by the colour-blind. */
const DIVERGING = { light: [[33, 102, 172], [146, 197, 222], [246, 246, 246], [244, 165, 130], [178, 24, 43]],
  dark: [[90, 170, 240], [46, 88, 128], [38, 44, 50], [140, 70, 50], [255, 110, 80]] };

const diverging = () => DIVERGING[isDark() ? "dark" : "light"];

/**
 * @typedef {{cells: Cells, rank: number, row: number, label: string}} Line  a line of the map
 * @typedef {{lines: Line[], measure: (line: Line, step: number) => number | undefined, limits: [number, number], isDiverging: boolean, rowTitle: string,
 *   marks: Map<string, string>, selected: [number, number]}} MapState
 */

/** A map in a column of the page. */
class HeatMap {
  /** @param {HTMLElement} box @param {(line: number, step: number, event: MouseEvent) => void} chosen @param {(line: number, step: number, event: MouseEvent | null) => void} hovered */
  constructor(box, chosen, hovered) {
    this.canvas = /** @type {HTMLCanvasElement} */ (el("canvas", { role: "img" }));
    this.space = el("div", { class: "space" });
    this.scroll = el("div", { class: "scroll", tabindex: "0" }, this.space, this.canvas);
    box.append(this.scroll);
    /** @type {MapState | null} */
    this.state = null;
    this.longest = 0;
    this.scroll.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.scroll);
    this.canvas.addEventListener("click", (event) => {
      const found = this.at(event);
      if (found) chosen(found[0], found[1], event);
    });
    this.canvas.addEventListener("mousemove", (event) => {
      const found = this.at(event);
      if (found) hovered(found[0], found[1], event);
      else hovered(-1, -1, null);
    });
    this.canvas.addEventListener("mouseleave", () => hovered(-1, -1, null));
  }

  /** The width of the names: as wide as the longest one, within limits. */
  get labels() {
    return Math.min(LABELS.most, this.longest * LETTER + TITLE + 12, this.scroll.clientWidth * LABELS.share);
  }

  /** The height of a row: a few rows take the room that there is. */
  get row() {
    const room = Math.floor((this.scroll.clientHeight - AXIS) / Math.max(this.state?.lines.length ?? 1, 1));
    return Math.min(ROW.most, Math.max(ROW.least, room));
  }

  get steps() {
    return this.state?.lines[0]?.cells.steps ?? 0;
  }

  /** The line and step under the pointer. @param {MouseEvent} event @returns {[number, number] | null} */
  at(event) {
    if (!this.state) return null;
    const line = Math.floor((event.offsetY + this.scroll.scrollTop) / this.row);
    const across = (event.offsetX - this.labels) / (this.scroll.clientWidth - this.labels - 8);
    if (line < 0 || line >= this.state.lines.length || across >= 1 || event.offsetY > this.scroll.clientHeight - AXIS) return null;
    return [line, Math.max(0, Math.floor(across * this.steps))];
  }

  /** @param {MapState} state */
  show(state) {
    this.state = state;
    this.longest = state.lines.reduce((most, line) => Math.max(most, line.label.length), 0);
    this.canvas.setAttribute("aria-label", `${state.lines.length} rows, ${this.steps} steps`);
    this.draw();
  }

  /** Scrolls until a line is in sight. @param {number} line */
  reveal(line) {
    const { scroll } = this;
    const [inSight, row] = [scroll.clientHeight - AXIS, this.row];
    if (line * row < scroll.scrollTop) scroll.scrollTop = line * row;
    else if ((line + 1) * row > scroll.scrollTop + inSight) scroll.scrollTop = (line + 2) * row - inSight;
  }

  draw() {
    const { state, canvas, scroll } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [scroll.clientWidth, scroll.clientHeight];
    if (!state || !width || !height) return;
    const row = this.row;
    this.space.style.height = `${state.lines.length * row + AXIS}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const brush = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    brush.scale(ratio, ratio);
    const styles = getComputedStyle(document.documentElement);
    /** @param {string} name */
    const colour = (name) => styles.getPropertyValue(name);
    brush.font = "12px ui-monospace, Menlo, Consolas, monospace";
    brush.textBaseline = "middle";
    const left = this.labels;
    const wide = width - left - 8;
    const columns = Math.min(this.steps, Math.max(1, Math.floor(wide)));
    const first = Math.floor(scroll.scrollTop / row);
    const last = Math.min(state.lines.length, Math.ceil((scroll.scrollTop + height - AXIS) / row));
    const [low, high] = state.limits;
    const scale = state.isDiverging ? diverging() : RISING;
    for (let at = first; at < last; at++) {
      const line = state.lines[at];
      const y = at * row - scroll.scrollTop;
      for (let column = 0; column < columns; column++) {
        const from = Math.floor((column / columns) * this.steps);
        const to = Math.max(from + 1, Math.floor(((column + 1) / columns) * this.steps));
        let worst;
        for (let step = from; step < to; step++) {
          const value = state.measure(line, step);
          if (value === undefined) continue;
          if (worst === undefined || Number.isNaN(value) || Math.abs(value) > Math.abs(worst)) worst = value;
          if (Number.isNaN(worst)) break;
        }
        if (worst === undefined) continue;
        brush.fillStyle = Number.isNaN(worst) ? colour("--alone") : shade(scale, (worst - low) / (high - low || 1));
        const x = left + (column / columns) * wide;
        brush.fillRect(x, y, Math.max(1, wide / columns + (wide / columns > 3 ? -0.5 : 0.5)), row - 1);
      }
      brush.fillStyle = colour(at === state.selected[0] ? "--text" : "--soft");
      brush.fillText(cut(line.label, Math.floor((left - TITLE - 8) / LETTER)), TITLE, y + row / 2);
    }
    this.drawMarks(brush, colour, left, wide, first, last);
    this.drawAxis(brush, colour, left, wide, height);
  }

  /** @param {CanvasRenderingContext2D} brush @param {(name: string) => string} colour @param {number} left @param {number} wide @param {number} first @param {number} last */
  drawMarks(brush, colour, left, wide, first, last) {
    const row = this.row;
    const state = /** @type {MapState} */ (this.state);
    const size = wide / this.steps;
    for (const [key, name] of state.marks) {
      const [line, step] = key.split(" ").map(Number);
      if (line < first || line >= last) continue;
      const [x, y] = [left + step * size, line * row - this.scroll.scrollTop];
      brush.strokeStyle = colour(name);
      brush.lineWidth = 2;
      brush.strokeRect(x - 1, y, Math.max(size, 5) + 1, row - 1);
    }
    const [line, step] = state.selected;
    if (line >= first && line < last) {
      const y = line * row - this.scroll.scrollTop;
      brush.fillStyle = colour("--focus");
      brush.fillRect(TITLE - 8, y + 2, 3, row - 5);
      brush.strokeStyle = colour("--text");
      brush.lineWidth = 1.5;
      brush.strokeRect(left + step * size - 1, y - 0.5, Math.max(size, 4) + 1.5, row);
    }
  }

  /** @param {CanvasRenderingContext2D} brush @param {(name: string) => string} colour @param {number} left @param {number} wide @param {number} height */
  drawAxis(brush, colour, left, wide, height) {
    const steps = this.state?.lines[0]?.cells.run.steps ?? [];
    // Below the last row, or at the foot.
    const rows = (this.state?.lines.length ?? 0) * this.row - this.scroll.scrollTop;
    height = Math.min(height, rows + AXIS);
    brush.fillStyle = colour("--back");
    brush.fillRect(0, height - AXIS, left + wide + 8, AXIS);
    brush.fillStyle = colour("--soft");
    brush.font = "12px system-ui, sans-serif";
    brush.fillText(TEXTS.step, left + wide / 2 - brush.measureText(TEXTS.step).width / 2, height - 8);
    const { rowTitle } = /** @type {MapState} */ (this.state);
    brush.save();
    brush.translate(10, (Math.max(0, height - AXIS) + brush.measureText(rowTitle).width) / 2);
    brush.rotate(-Math.PI / 2);
    brush.fillText(rowTitle, 0, 0);
    brush.restore();
    let free = left - 10;
    for (const at of ticks(steps.length, Math.floor(wide / 70))) {
      const x = left + ((at + 0.5) / steps.length) * wide;
      brush.fillRect(x, height - AXIS, 1, 4);
      const text = String(steps[at]);
      const width = brush.measureText(text).width;
      if (x - width / 2 < free || x + width / 2 > left + wide + 8) continue;
      brush.fillText(text, x - width / 2, height - AXIS + 12);
      free = x + width / 2 + 10;
    }
  }
}

/** Round indices along an axis. @param {number} length @param {number} most */
function ticks(length, most) {
  const rough = length / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const by = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough) ?? 1;
  const found = [];
  for (let at = 0; at < length; at += by) found.push(at);
  return found;
}

/** A name with its end in sight, since names of modules differ there. @param {string} text @param {number} most */
const cut = (text, most) => (text.length <= most ? text : `…${text.slice(1 - Math.max(most, 2))}`);
