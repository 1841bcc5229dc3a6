// All that is known of the chosen row.

let details = 0;

/** A number as text, with all digits that the data has. @param {Cell} cell */
const exact = (cell) => (cell === null ? "–" : Object.is(cell, -0) ? "-0" : String(cell));

/** @param {Tensor | null} tensor @returns {string[]} */
function fields(tensor) {
  if (!tensor) return ["–"];
  const { shape, grad, max, min, mean, norm, sum, value } = tensor;
  const dtype = tensor.dtype.replace(/^torch\.|^<class '(\w+)'>$/, "$1");
  if (value !== null && value !== undefined) return [dtype, value];
  if (!dtype && !shape) return ["None"];
  return [dtype, shape, exact(max), exact(min), exact(mean), exact(norm), grad < 0 ? "" : grad ? "grad" : "no grad", ...(sum === null ? [] : [sum])];
}

const FIELDS = ["dtype", "shape", "max", "min", "mean", "norm", "requires_grad", "checksum"];
/** The last one only where a tensor has it. @param {(Tensor | null)[]} tensors */
const columnsOf = (tensors) => (tensors.some((one) => one && one.sum !== null) ? FIELDS : FIELDS.slice(0, -1));

/** A text, marked from where it differs on. @param {string} text @param {string | undefined} other */
function differing(text, other) {
  // Frameworks write a dtype in capitals, or not.
  if (other === undefined || text.toLowerCase() === other.toLowerCase()) return el("td", { class: /^-?(inf|nan)$/i.test(text) ? "nonfinite" : null }, text);
  let same = 0;
  while (same < text.length && text[same] === other[same]) same++;
  return el("td", {}, text.slice(0, same), el("mark", {}, text.slice(same) || " "));
}

/** What of a tensor is not finite, and of how many elements; "" where all are. @param {Tensor | null} tensor */
function nonfiniteText(tensor) {
  if (!tensor || tensor.value !== null) return "";
  const { max, min, excluded, shape } = tensor;
  const kinds = [min === "-inf" && "-inf", max === "inf" && "inf", (max === "nan" || min === "nan") && "NaN"].filter(Boolean).join(", ");
  const elements = (shape.match(/\d+/g) || []).reduce((product, size) => product * Number(size), 1);
  return kinds && (excluded ? fill(TEXTS.elements, kinds, excluded, elements) : kinds);
}

/** The same of both sides. @param {(Tensor | null)[]} tensors */
function nonfiniteTexts(tensors) {
  const [mine, other] = tensors.map(nonfiniteText);
  return mine === other || !tensors[1] ? mine : [mine && `${TEXTS.target}: ${mine}`, other && `${TEXTS.golden}: ${other}`].filter(Boolean).join(", ");
}

/** What is said of an item of two sides; metrics that it has none of are left out. @param {Item} item @param {Comparison} info */
function told([, , , difference, measured, , note, explained], info) {
  const [error, part] = [numeric(difference), numeric(explained)];
  const metrics = (measured || []).map((cell, at) => (cell === null || /^(unsupported|N\/A|shape unmatched)$/.test(String(cell)) ? "" : `${state.manifest.metrics[at]} ${exact(cell)}`));
  return [Number.isNaN(error) ? "" : `${differenceName(info)} ${shortNumber(error)}`, Number.isNaN(part) ? "" : fill(TEXTS.explained, part < 1 ? shortNumber(part) : TEXTS.anySize), ...metrics, note].filter(Boolean).join(" · ");
}

/** The name that an argument has in the signature of its function; empty where it is not known. @param {string} call @param {string} item */
function argumentName(call, item) {
  const [, made] = /^(.+)\.\d+\.forward$/.exec(call) ?? [];
  const [, at] = /^input\.(\d+)$/.exec(item) ?? [];
  return (made && at && state.manifest.arguments?.[made]?.[+at]) || "";
}

/** @param {Rows} rows @param {number} row @param {Item[]} items */
async function itemTable(rows, row, items) {
  const two = rows.columns.golden !== 0;
  const all = await Promise.all(items.map(([, mine, other]) => Promise.all([rows.tensor(mine), rows.tensor(other)])));
  const makers = (await rows.makers())[row] || [];
  const table = el("table", {}, el("tr", {}, ...[two ? TEXTS.item : "", ...columnsOf(all.flat())].map((text) => el("th", {}, text))));
  for (const [at, item] of items.entries()) {
    const [name, mine, other, difference, , status] = item;
    const tensors = all[at];
    const [left, right] = tensors.map(fields);
    const [argument, is] = [argumentName(rows.name(row), rows.names[name]), distanceStyle(rows.info, numeric(difference))];
    const isOutput = rows.names[name].startsWith("output");
    const differs = tensors[0] && tensors[1] && tensors[0].value !== null && tensors[1].value !== null && tensors[0].value !== tensors[1].value && !isOutput;
    table.append(
      el("tr", { class: `item${isSought(rows.names[name], argument) ? " hit" : ""}` }, el("th", { colspan: 9, scope: "colgroup" }, el("div", {}, two && badge(status), ` ${rows.names[name]} `, is && el("i", { class: "swatch", style: is }),
        differs && el("b", {}, `${TEXTS.otherArgument} `), el("small", {}, [argument, told(item, rows.info), isOutput && nonfiniteTexts(tensors)].filter(Boolean).join(" · ")), ...originLinks(rows, row, makers[at]))))
    );
    const same = two && mine >= 0 && mine === other;
    [left, right].forEach((cells, side) => {
      if (side && (!two || same)) return;
      table.append(
        el("tr", {}, el("th", { scope: "row" }, !two ? "" : same ? TEXTS.sides.both : side ? TEXTS.golden : TEXTS.target),
          ...cells.map((text, at) => differing(text, tensors[0] && tensors[1] ? (side ? left : right)[at] : undefined)))
      );
    });
  }
  const held = items.map(([name], at) => (rows.names[name].startsWith("output") ? "" : nonfiniteTexts(all[at]) && `${rows.names[name]}: ${nonfiniteTexts(all[at])}`)).filter(Boolean);
  return el("div", { class: "wide" }, held.length > 0 && el("p", { class: "held" }, el("strong", {}, `${TEXTS.inputsHold} `), held.join("; ")), table);
}

/** Lines that only one of two lists has. @param {string[]} mine @param {string[]} other @returns {Set<number>} */
function onlyIn(mine, other) {
  const longest = mine.map(() => new Uint16Array(other.length + 1)).concat([new Uint16Array(other.length + 1)]);
  for (let i = mine.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) longest[i][j] = mine[i] === other[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  }
  /** @type {Set<number>} */
  const found = new Set();
  for (let i = 0, j = 0; i < mine.length; ) {
    if (j < other.length && mine[i] === other[j]) i++, j++;
    else if (j < other.length && longest[i][j + 1] > longest[i + 1][j]) j++;
    else found.add(i++);
  }
  return found;
}

/** A link to another row. @param {number} row */
function rowLink(row) {
  const { rows } = state;
  const is = distanceStyle(rows.info, distanceOf(rows, row));
  return el("button", { class: "link", onclick: () => reveal(row), title: rows.name(row) }, badge(rows.status[row]), is && el("i", { class: "swatch", style: is }), " ", ...nameText(shortName(rows.name(row))));
}

/** A link into another comparison. @param {number} k @param {number} row @param {string} text */
const farLink = (k, row, text) => el("button", { class: "link", onclick: () => (k === state.rows.k ? reveal(row) : openComparison(k, row)) }, text);

/** @param {number} row */
async function showDetail(row) {
  const mine = ++details;
  const { rows } = state;
  const { columns } = rows;
  const { statuses, reasons } = state.manifest;
  let detail, table, stack, taken;
  try {
    detail = await rows.detail(row);
    [table, stack, taken] = await Promise.all([detail.i?.length ? itemTable(rows, row, detail.i) : (rows.hasInside(row) && !columns.has[row]) || rows.info.mode === "structure" ? null : el("p", { class: "none" }, columns.has[row] ? TEXTS.noTensors : TEXTS.noItems), stackPart(rows, row), takerPart(rows, row)]);
  } catch (error) {
    showError(error);
    return;
  }
  if (mine !== details) return;
  const one = statuses[rows.status[row]];
  const [target, golden] = [rows.target(row), rows.golden(row)];
  const two = columns.golden !== 0;
  const inside = statuses.map((status, at) => (status.problem && rows.hasInside(row) ? [rows.count(row, at) - (rows.status[row] === at ? 1 : 0), status.name] : [0])).filter(([count]) => count);
  const { merged, parts, partners } = detail;
  const panel = el(
    "div", {},
    el("h2", { title: rows.name(row) }, badge(rows.status[row]), " ", ...nameText(rows.name(row))),
    el("p", { class: "tools" }, el("button", { onclick: copyName }, TEXTS.copyName), el("button", { onclick: copyMarkdown }, TEXTS.copyMarkdown)),
    two && columns.has[row] > 0 && el("p", { class: "apart" }, ...[[TEXTS.in, rows.in[row]], [TEXTS.out, rows.out[row]]].flatMap(([name, value]) => (Number.isNaN(value) ? [] : [`${name} `, el("b", { class: "num", style: distanceStyle(rows.info, Number(value)) }, shortNumber(Number(value))), " "])),
      rows.others.has(row) && el("strong", {}, TEXTS.otherArgument)),
    two && golden !== target && el("p", {}, `${TEXTS.golden}: ${golden || TEXTS.missing}`),
    two && el("p", {}, el("strong", { class: tone(rows.status[row]) }, one.name), ` ${detail.why || hintOf(rows.status[row])} `, reasons[columns.reason[row]] && el("small", {}, fill(TEXTS.pairedBy, reasons[columns.reason[row]]))),
    detail.cause && el("p", { class: "cause" }, el("strong", {}, `${TEXTS.cause}: `), detail.cause),
    inside.length > 0 && el("p", {}, inside.map(([count, name]) => fill(TEXTS.inside, count, name)).join(" · ")),
    table && el("section", {}, el("h3", {}, TEXTS.items), table),
    (merged || parts) && el("section", {}, el("h3", {}, TEXTS.merged), ...(merged || []).map((text) => el("p", {}, text)), ...(parts || []).map(([text, k, at]) => farLink(k, at, text))),
    partners && el("section", {}, el("h3", {}, TEXTS.partners), ...partners.map(([k, at, text]) => farLink(k, at, text))),
    taken, stack,
    el("section", {}, el("h3", {}, TEXTS.around), ...rows.above(row).map((up) => rowLink(up)))
  );
  byId("detail").replaceChildren(panel);
}

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Some browsers have no clipboard for files; the older way still works there.
    const area = el("textarea", {}, text);
    document.body.append(area);
    /** @type {HTMLTextAreaElement} */ (area).select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) return say(TEXTS.notCopied);
  }
  say(fill(TEXTS.copied, text.split("\n")[0]));
}

const copyName = () => copy(state.rows.name(state.selected));

/** Saves a text or a picture as a file. @param {string} name @param {string | Blob} text @param {string} type */
function download(name, text, type) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.getAttribute("href") || ""), 1000);
}

/** Saves the rows that are shown. */
function downloadCsv() {
  const { rows } = state;
  const { statuses, reasons, levels } = state.manifest;
  // A name that begins like a formula would be calculated by a spreadsheet.
  /** @param {any} cell */
  const quoted = (cell) => `"${String(cell).replace(/^[=+@\t\r-](?![\d.])/, "'$&").replace(/"/g, '""')}"`;
  const made = [["target", "golden", "status", "in_error", "out_error", "paired_by", "overflow", "worst_inside"]];
  for (const row of lines.subarray(0, lineCount)) {
    const { columns } = rows;
    made.push([rows.target(row), rows.golden(row), statuses[rows.status[row]].name, ...[rows.in[row], rows.out[row]].map((value) => (Number.isNaN(value) ? "" : String(value))), reasons[columns.reason[row]], levels[columns.level[row]], statuses[rows.worst[row]].name]);
  }
  download("graph.csv", made.map((cells) => cells.map(quoted).join(",")).join("\n") + "\n", "text/csv");
}
