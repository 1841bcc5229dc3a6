// A row as Markdown for an issue: ten lines that are read, and the values and frames folded below them.

/** One line. @param {string} text */
const oneLine = (text) => text.replace(/[\r\n]+/g, " ");

/** A text as code, whatever is in it. @param {string} text */
function asCode(text) {
  const fence = "`".repeat(Math.max(0, ...(text.match(/`+/g) || []).map((one) => one.length)) + 1);
  return fence.length > 1 ? `${fence} ${oneLine(text)} ${fence}` : fence + oneLine(text) + fence;
}

/** A sentence, in which names of calls stay as they are: `__mul__` is no bold type. @param {string} text */
const asSentence = (text) => oneLine(text).replace(/[|\\`*_<]/g, "\\$&");

/** @param {string} title @param {string[]} inside */
const foldedPart = (title, inside) => (inside.length ? ["", `<details><summary>${title}</summary>`, "", ...inside, "", "</details>"] : []);

/** The values of a row as a table. @param {Rows} rows @param {Item[]} items @param {string[]} sides */
async function valueTable(rows, items, sides) {
  const two = sides.length > 1;
  const shown = columnsOf(await Promise.all(items.flatMap(([, mine, other]) => [rows.tensor(mine), rows.tensor(other)])));
  const made = [`| ${[TEXTS.item, "", ...shown, differenceName(rows.info)].join(" | ")} |`, `|${"---|".repeat(shown.length + 3)}`];
  for (const item of items) {
    for (const [at, side] of sides.entries()) {
      const values = fields(await rows.tensor(item[at ? 2 : 1]));
      made.push(`| ${[rows.names[item[0]], two ? side : "", ...shown.map((_, column) => values[column] ?? ""), at ? "" : told(item, rows.info)].map(asSentence).join(" | ")} |`);
    }
  }
  return made;
}

/** What is said of a row, for an issue. @param {number} row @returns {Promise<string>} */
async function asMarkdown(row) {
  const { rows } = state;
  const { info } = rows;
  const { tool, statuses } = state.manifest;
  const [detail, stacks] = await Promise.all([rows.detail(row), rows.stacks(row)]);
  const { name } = statuses[rows.status[row]];
  const two = rows.columns.golden !== 0;
  const sides = /** @type {[string, Side, string][]} */ ([[TEXTS.target, info.target, rows.target(row)], [TEXTS.golden, info.golden, rows.golden(row)]]).slice(0, two ? 2 : 1);
  const [root, otherRoot] = info.roots ?? ["", ""];
  const frames = [stacks[0].map((text) => frameOf(text, root)), stacks[1].map((text) => frameOf(text, otherRoot))];
  const lines = frames.map((all, side) => all[usersLine(stacks[side])]);
  /** @param {Frame} frame */
  const placed = (frame) => (frame.path ? `${asCode(`${frame.path}:${frame.line}`)} ${asCode(frame.code)}` : asCode(frame.text));
  const around = rows.above(row).find((up) => moduleWords(up).length);
  const [path, kind] = around === undefined ? [] : moduleWords(around);
  const isSame = lines[0] && lines[1] && frameKey(lines[0]) === frameKey(lines[1]);
  const made = [
    `### ${row === info.first ? `${TEXTS.first}: ` : ""}${asCode(rows.name(row))}${path ? ` ${TEXTS.inside1} ${asCode(path)} (${kind})` : ""}`, "",
    row === firstBad() ? "" : `> ${asSentence(info.verdict[0] ?? "")}`,
    two ? `- **${name}**: ${asSentence(detail.why || hintOf(rows.status[row]))}` : "", detail.cause ? `- ${TEXTS.cause}: ${asSentence(detail.cause)}` : "",
    ...(isSame || !lines[1] || !two ? [lines[0] ? `- ${placed(lines[0])}` : ""] : [lines[0] ? `- ${TEXTS.target}: ${placed(lines[0])}` : "", `- ${TEXTS.golden}: ${placed(lines[1])}`]),
    ...sides.map(([side, { path, framework, task }, node]) => `- ${side}: ${asCode(path)} (${[framework, task].filter(Boolean).join(", ")})${node === rows.name(row) ? "" : `, ${node ? asCode(node) : TEXTS.missing}`}`),
    info.card?.outside.length ? `- ${TEXTS.differ}: ${asSentence(info.card.outside.join("; "))}` : "", `- ${[placeOf(info), info.mode, tool].filter(Boolean).join(", ")}`,
  ].filter((text, at) => text || at === 1);
  if (detail.i?.length) made.push(...foldedPart(TEXTS.items, await valueTable(rows, detail.i, sides.map(([side]) => side))));
  const same = frames[0].map(frameKey).join() === frames[1].map(frameKey).join();
  for (const [at, [side]] of sides.entries()) {
    if (!frames[at].length || (at && same)) continue;
    const shown = frames[at].map(({ path, line, within, code, text }) => oneLine(path ? `${path}:${line} ${within}: ${code}` : text));
    made.push(...foldedPart(`${fill(TEXTS.frames, shown.length)}${two && !same ? `, ${side}` : ""}`, ["````", ...shown, "````"]));
  }
  return `${made.join("\n")}\n`;
}

const copyMarkdown = async () => copy(await asMarkdown(state.selected));
