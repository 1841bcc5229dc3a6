// The answer as a card of at most four lines, and below it what there is of each status.

/** @param {Side} side */
const kindOf = ({ framework, task, level }) => [framework, task, level].filter(Boolean).join(" · ");

/** The end of a path from the run's folder on, and from where it is not the other side's. @param {string} path @param {string} [other] */
function pathEnd(path, other) {
  const parts = path.split(/(?<=[\\/])/);
  let from = parts.length - 1;
  while (from > 0 && (/^((step|rank|proc)\d*|graph|pynative)[\\/]?$|\.(jsonl?|journal)$/.test(parts[from]) || (other !== path && other?.endsWith(parts.slice(from).join(""))))) from--;
  return (from > 0 ? "…/" : "") + parts.slice(from).join("");
}

/** @param {Side} side @param {string} label @param {string} kind what is not the same on both sides @param {Side | null} other */
const sidePart = ({ path, nodes }, label, kind, other) =>
  el("span", { class: "side" }, label && el("b", {}, label), el("code", { title: path }, el("bdi", {}, pathEnd(path, other?.path))), el("small", {}, [kind, `${nodes} ${TEXTS.nodes}`].filter(Boolean).join(" · ")));

/** A line of the verdict, in which the names of its rows are links. @param {string} line */
function verdictLine(line) {
  const { rows } = state;
  const { chain, suspects } = rows.info;
  const named = new Map([firstBad() ?? -1, ...chain, ...suspects].filter((row) => row >= 0).map((row) => [rows.name(row), row]));
  return line.split(/([,;:\s]+)/).map((word) => {
    const row = named.get(word);
    return row === undefined ? word : rowButton(row, word);
  });
}

/** @param {number} row @param {string} text */
const rowButton = (row, text) => el("button", { class: "inline", onclick: () => reveal(row), title: state.rows.name(row) }, ...nameText(shortName(text, 70)));

/** The module around a row as its attributes and its class; empty without one. @param {number} row */
function moduleWords(row) {
  const parts = state.rows.name(row).split(".");
  const at = parts.findIndex((part, index) => index > 1 && /^(forward|backward)$/.test(part));
  return /^(Module|Cell)$/.test(parts[0]) && at > 2 ? [parts.slice(1, at - 1).join("."), parts[at - 1]] : [];
}

/** What a comparison answers: its colour on the card, in the matrix and in the strip. @param {Comparison} info @returns {"bad" | "follows" | "untold" | "fine" | ""} */
function answerOf(info) {
  if (!info.golden) return info.nonfinite === null ? (info.mode === "structure" ? "" : "fine") : info === state.manifest.comparisons[firstNonfinite()?.k ?? 0] ? "bad" : "follows";
  if (info.follows) return "follows";
  const { colour, problem } = state.manifest.statuses[info.worst] ?? {};
  if (state.manifest.rules === "msprobe" && colour === "warn") return "untold";
  // Of dumps without values the calls are the answer.
  if (info.first !== null || problem || (info.mode === "structure" && colour === "alone")) return "bad";
  return info.answer === "cannot_tell" || info.partial ? "untold" : "fine";
}

/** True if another rank of the same step names the same call first. @param {Comparison} info @param {number} k */
function isRepeated(info, k) {
  const { first, comparisons } = state.manifest;
  const one = comparisons[first ?? -1];
  return !!one && k !== first && one.run === info.run && one.step === info.step && !!info.first_name && one.first_name === info.first_name;
}

/** The letter of an answer in its colour; for rules that give none the worst status. @param {Comparison} info @param {number} k */
function answerBadge(info, k) {
  if (!info.card && info.golden) return badge(info.worst);
  const answer = isRepeated(info, k) ? "follows" : answerOf(info);
  const [letter, colour] = { bad: ["!", "bad"], follows: ["→", "neutral"], untold: ["?", "warn"], fine: ["=", "good"], "": ["·", "none"] }[answer];
  return el("span", { class: `badge s-${colour}`, title: [TEXTS.answers[answer], info.verdict[0]].filter(Boolean).join(": ") }, letter);
}

/** The lines of the card below its title. @returns {(HTMLElement | "")[]} */
function cardLines() {
  const { manifest, rows } = state;
  const { card, verdict, roots, first } = rows.info;
  /** @param {string} kind @param {(Node | string | false | undefined)[]} inside */
  const line = (kind, inside) => {
    const made = el("p", { class: `line ${kind}` }, ...inside);
    made.title = made.textContent ?? "";
    return made;
  };
  if (isSaid()) {
    const said = (manifest.said ?? []).slice(1).map((text) => text.trim());
    const [mine] = said.filter((text) => text.startsWith("File "));
    const others = said.filter((text) => text !== mine).slice(0, 2);
    return [line("", verdictLine(others.join(" · "))), mine ? line("frame", [frameLine(frameOf(mine.replace(/, in ([^,]*), /, ", in $1, \n "), ""))]) : ""];
  }
  if (first === null || !card?.lines) {
    const others = [...new Set([...(card?.hints ?? []), ...verdict.slice(1).map((text) => text.trim())])].filter((text) => !/^outside of the model/.test(text));
    return others.slice(0, 2).map((text) => line("", verdictLine(text)));
  }
  const [mine, other] = card.lines.map((text, side) => text && frameOf(text, (roots ?? ["", ""])[side]));
  const made = [line("", [card.cause && el("b", {}, `${TEXTS.cause}: `), ...(card.cause ? verdictLine(card.cause) : []), card.cause && " · ", card.cause && el("b", {}, `${TEXTS.effect}: `), ...verdictLine(card.effect ?? "")])];
  if (mine || other) {
    const both = mine && other && mine.path === other.path;
    made.push(line("frame", mine ? [!other && `${TEXTS.target}: `, frameLine(mine, both ? other : undefined), !both && other && ` · ${TEXTS.golden}: `, !both && other && frameLine(other)] : [`${TEXTS.golden}: `, other && frameLine(other)]));
  }
  return made;
}

/** True if the card has what a command has answered that made the page besides. */
const isSaid = () => !state.rows.info.golden && state.rows.k === 0 && !!state.manifest.said?.length;

/** The title of the card. @returns {(Node | string)[]} */
function cardTitle() {
  const { manifest, rows } = state;
  const { verdict, first, chain, follows } = rows.info;
  if (isSaid()) return verdictLine(manifest.said?.[0] ?? "");
  const title = follows ? verdict[0].replace(/^cannot be told: /, "") : verdict[0] || manifest.title;
  const alone = !rows.info.golden && rows.info.nonfinite !== null ? rows.above(rows.info.nonfinite) : [];
  if (first === null && !alone.length) return verdictLine(title);
  const around = chain[0] ?? alone[0];
  // Rules that count have the call in another line.
  const [path, kind] = around === undefined || !title.includes(rows.name(first ?? rows.info.nonfinite ?? 0)) ? [] : moduleWords(around);
  // The module stands once, behind the call, as a button.
  return [...verdictLine(title.replace(`${path} (${kind}), `, "")), ...(path ? [el("span", { class: "place" }, ` ${TEXTS.inside1} `, rowButton(around, path), ` (${kind})`)] : [])];
}

function showHead() {
  const { manifest, rows } = state;
  const { target, golden, notes, counts, step, rank, card } = rows.info;
  const both = golden && kindOf(golden) !== kindOf(target) ? "" : kindOf(target);
  const lines = cardLines();
  const shown = lines.map((one) => (one ? one.textContent?.toLowerCase() : ""));
  const said = [...notes, ...manifest.unpaired].filter((text) => !shown.includes(text.toLowerCase().replace(/\.$/, "")));
  const outside = card?.outside ?? [];
  byId("head").replaceChildren(
    el("div", { id: "verdict", class: golden || rows.info.nonfinite !== null ? answerOf(rows.info) : "" },
      el("h1", {}, manifest.comparisons.length > 1 && !isSaid() && el("small", { class: "place" }, `${placeOf(rows.info)}: `), ...cardTitle(), firstBad() !== null && golden && el("button", { onclick: firstDivergence, title: TEXTS.first }, "f")),
      ...lines,
      el("p", { id: "sides", class: "line", title: outside.length ? `${TEXTS.differ}: ${outside.join("; ")}` : "" },
        sidePart(target, golden ? TEXTS.target : "", both ? "" : kindOf(target), golden), golden && sidePart(golden, TEXTS.golden, both ? "" : kindOf(golden), target),
        outside.length > 0 && el("span", { class: "outside" }, el("b", {}, TEXTS.differ), outside.join("; ")))),
    el("p", { id: "statuses" },
      ...manifest.statuses.map((one, status) =>
        golden && counts[status] > 0 && el("button", { class: `chip ${tone(status)}`, "data-status": status, title: status ? `${hintOf(status)} (${status})` : hintOf(status), "aria-pressed": String(!filter.hide.has(status)), onclick: () => toggleStatus(status) }, badge(status), ` ${one.name} ${counts[status]}`)),
      el("small", {}, [both, step !== null && `${TEXTS.step} ${step}`, rank !== null && `${TEXTS.rank} ${rank}`, rows.info.mode !== target.task && rows.info.mode, manifest.tool, golden && !rows.info.measured && rows.info.mode !== "structure" && TEXTS.unmeasured].filter(Boolean).join(" · "))),
    // Several would leave no room for the rows.
    said.length === 1 ? el("p", { class: "banner" }, said[0]) : !said.length ? "" : el("details", { class: "banner notes" }, el("summary", {}, el("span", {}, said[0]), el("b", {}, fill(TEXTS.more, said.length - 1))), ...said.slice(1).map((text) => el("p", {}, text)))
  );
}
