// Lines of call stacks: their files below the root of each checkout, and the code around a call as a diff of both runs.

/** @typedef {{path: string, line: number, within: string, code: string, text: string}} Frame */
/** @typedef {[number, string[]]} Around */

const PACKAGES = /^.*[/\\](?:site|dist)-packages[/\\]|^.*[/\\]lib(?:64)?[/\\]python\d[\d.]*[/\\]/;

/** A line of a stack in parts; the text alone where it has another form. @param {string} text @param {string} root @returns {Frame} */
function frameOf(text, root) {
  const [, file, line, within, code] = /^\s*File "?([^\n,"]+)"?, line (\d+), in ([^\n]*?),?\s*\n\s*([^]*)$/.exec(text) ?? [];
  if (!file) return { path: "", line: 0, within: "", code: text, text };
  const inPackage = PACKAGES.test(file);
  const path = inPackage ? file.replace(PACKAGES, "") : root && file.startsWith(root) ? file.slice(root.length) : file;
  return { path, line: Number(line), within, code: code.trim(), text };
}

/** What is the same in two checkouts, where other lines may stand above. @param {Frame} frame */
const frameKey = ({ path, within, code }) => `${path}\n${within}\n${code}`;

/** A text, and in it what another one has otherwise. @param {string} mine @param {string | undefined} theirs @returns {(Node | string)[]} */
function inlineDiff(mine, theirs) {
  if (theirs === undefined || mine === theirs) return [mine];
  let [from, end] = [0, 0];
  const least = Math.min(mine.length, theirs.length);
  while (from < least && mine[from] === theirs[from]) from++;
  while (end < least - from && mine[mine.length - 1 - end] === theirs[theirs.length - 1 - end]) end++;
  const [old, made] = [theirs.slice(from, theirs.length - end), mine.slice(from, mine.length - end)];
  return [mine.slice(0, from), old && el("del", { title: TEXTS.golden }, old), made && el("ins", { title: TEXTS.target }, made), mine.slice(mine.length - end)].filter(Boolean);
}

/** The place and the code of a frame in one line, with what the other side has otherwise. @param {Frame} mine @param {Frame} [other] */
function frameLine(mine, other) {
  if (!mine.path) return el("code", { title: mine.text }, mine.code);
  const moved = other && other.path === mine.path && other.line !== mine.line ? ` (${TEXTS.golden}: ${other.line})` : "";
  return el("code", { title: mine.text }, el("b", {}, `${mine.path}:${mine.line}`), `${moved}${mine.within ? ` ${TEXTS.inside1} ${mine.within}` : ""}  `, ...inlineDiff(mine.code, other?.code));
}

/** The code around a call: both runs as a diff where they differ. @param {Around | undefined} mine @param {Around | undefined} theirs @param {number} at line of the call @param {number} [otherAt] */
function codeDiff(mine, theirs, at, otherAt) {
  const [one, other] = [mine ?? theirs, mine ? theirs : undefined];
  if (!one) return "";
  const [first, lines] = one;
  const [otherFirst, otherLines] = other ?? [0, []];
  /** @type {Set<number>} */
  const cut = new Set();
  const [added, removed] = other ? [onlyIn(lines, otherLines), onlyIn(otherLines, lines)] : [new Set(), new Set()];
  // What only one side shows at an end is cut off on the other, and is no difference; the call itself always is one.
  for (const [only, all, call] of /** @type {[Set<number>, number, number][]} */ ([[added, lines.length, at - first], [removed, otherLines.length, (otherAt ?? 0) - otherFirst]])) {
    for (const [from, by] of [[0, 1], [all - 1, -1]]) for (let i = from; only.has(i) && i !== call && only.size < all; i += by) cut.add(only === added ? i : -1 - i);
  }
  /** @type {HTMLElement[]} */
  const made = [];
  /** @param {string} sign @param {number} number @param {string} text @param {boolean} isCall */
  const put = (sign, number, text, isCall) => void made.push(el("li", { class: `${sign === "+" ? "added" : sign === "-" ? "removed" : ""}${isCall ? " call" : ""}` }, el("i", {}, String(number)), `${sign} ${text || " "}`));
  let j = 0;
  for (let i = 0; i <= lines.length; i++) {
    for (; j < otherLines.length && removed.has(j); j++) if (!cut.has(-1 - j)) put("-", otherFirst + j, otherLines[j], otherFirst + j === otherAt);
    if (i === lines.length) break;
    if (added.has(i) && cut.has(i)) put(" ", first + i, lines[i], false);
    else if (added.has(i)) put("+", first + i, lines[i], first + i === at);
    else put(" ", first + i, lines[i], first + i === at), j++;
  }
  return el("ol", { class: "code" }, ...made);
}

/** The code around calls of the comparison that is shown. @returns {Promise<{target?: Record<string, Around>, golden?: Record<string, Around>}>} */
const codeBlock = async () => (state.rows.info.card !== undefined && hasBlock(`c${state.rows.k}s`) ? block(`c${state.rows.k}s`) : {});

/** The line of a stack that is neither of the tool nor of the framework, as the terminal has it. @param {string[]} lines */
const usersLine = (lines) => Math.max(0, lines.findIndex((line) => !/[/\\](torch|mindspore|mindnlp|mindtorch)[/\\](?!.*[/\\](site|dist)-packages[/\\])/.test(line)));

/** Call stacks of a row: the code of the call, then the frames, those of libraries folded. @param {Rows} rows @param {number} row */
async function stackPart(rows, row) {
  const two = rows.columns.golden !== 0;
  let [[mine, other], code, from] = await Promise.all([rows.stacks(row), codeBlock(), rows.stackNote(row)]);
  const indexes = await rows.frameIndexes(row);
  const beside = row === rows.info.first ? rows.info.card?.lines ?? ["", ""] : ["", ""];
  const isBeside = two && !!(mine.length ? !other.length && beside[1] : other.length && beside[0]);
  if (isBeside) {
    // One side alone makes the call: its line stands beside the one of the other side that makes those around it.
    const frames = await block("frames");
    if (mine.length) [other, indexes[1]] = [[beside[1]], [frames.indexOf(beside[1])]];
    else [mine, indexes[0]] = [[beside[0]], [frames.indexOf(beside[0])]];
  }
  const part = el("section", {}, el("h3", {}, TEXTS.stacks, from && el("small", {}, ` ${from}`)));
  if (!mine.length && !other.length) {
    part.append(el("p", { class: "none" }, TEXTS.noStack));
    return part;
  }
  const [root, otherRoot] = rows.info.roots ?? ["", ""];
  const [own, others] = [mine.map((text) => frameOf(text, root)), other.map((text) => frameOf(text, otherRoot))];
  const [at, otherAt] = [usersLine(mine), usersLine(other)];
  // Of a row that is another call in the golden run, both codes are told apart by their heads.
  const sameFile = own[at]?.path === others[otherAt]?.path;
  const [around, otherAround] = [code.target?.[indexes[0][at]], code.golden?.[indexes[1][otherAt]]];
  if (own.length) part.append(el("p", { class: "frame" }, frameLine(own[at], sameFile ? others[otherAt] : undefined)));
  if (around && otherAround && sameFile) part.append(codeDiff(around, otherAround, own[at].line, others[otherAt].line));
  else part.append(codeDiff(around, undefined, own[at]?.line));
  if (others.length && (!own.length || !sameFile)) part.append(el("p", { class: "frame" }, `${TEXTS.golden}: `, frameLine(others[otherAt])), codeDiff(otherAround, undefined, others[otherAt].line));
  const [one, rest] = isBeside ? [rows.target(row) ? own : others, []] : [own.length ? own : others, own.length ? others : []];
  part.append(frameList(one, rest));
  return part;
}

/** All frames of both sides as one list: what one side alone has is marked. @param {Frame[]} mine @param {Frame[]} other */
function frameList(mine, other) {
  const [keys, otherKeys] = [mine.map(frameKey), other.map(frameKey)];
  const [added, removed] = other.length ? [onlyIn(keys, otherKeys), onlyIn(otherKeys, keys)] : [new Set(), new Set()];
  const differs = added.size + removed.size > 0;
  const items = [];
  let j = 0;
  for (let i = 0; i <= mine.length; i++) {
    for (; j < other.length && removed.has(j); j++) items.push({ frame: other[j], sign: "removed" });
    if (i < mine.length) items.push({ frame: mine[i], sign: added.has(i) ? "added" : "", other: added.has(i) ? undefined : other[j++] });
  }
  const made = items.map(({ frame, sign, other: same }) => el("li", { class: sign, title: frame.text }, sign === "added" ? "+ " : sign === "removed" ? "- " : "", frameLine(frame, same)));
  const title = !other.length ? fill(TEXTS.frames, mine.length) : differs ? fill(TEXTS.framesDiffer, mine.length, added.size, removed.size) : fill(TEXTS.framesSame, mine.length);
  return el("details", differs && added.size + removed.size < 12 ? { open: true } : {}, el("summary", {}, title), el("ol", { class: "frames" }, ...made));
}
