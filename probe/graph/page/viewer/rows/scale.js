// The one scale of the page: a distance as a height and as a colour, and the legend of both beside the strip.

/** Powers of ten at both ends of the scale: below the rounding of float32, and as far apart as all of a tensor. */
const [LEAST, MOST] = [-8, 0];
/** Colours of the scale, two for each power of ten. */
const SHADES = 2 * (MOST - LEAST);

/** Where a distance is on the scale, from 0 to 1; NaN without one, and for two tensors that are the same. @param {number} distance */
const placeOn = (distance) => (distance > 0 ? Math.min(1, Math.max(0, (Math.log10(distance) - LEAST) / (MOST - LEAST))) : NaN);

/** The number of the colour of a distance; NaN without one. @param {number} distance */
const shadeOf = (distance) => Math.round(placeOn(distance) * SHADES);

// The further apart two tensors are, the further the colour is from that of the page.
onTheme(() => {
  for (let at = 0; at <= SHADES; at++) {
    const [red, green, blue] = mixed(RISING, isDark() ? at / SHADES : 1 - at / SHADES);
    // Relative luminance: above 0.18 black is read better than white.
    const light = 0.2126 * (red / 255) ** 2.2 + 0.7152 * (green / 255) ** 2.2 + 0.0722 * (blue / 255) ** 2.2;
    setSize(`--d${at}`, `rgb(${red}, ${green}, ${blue})`);
    setSize(`--on${at}`, light > 0.18 ? "#000" : "#fff");
  }
});

/** A property in the colour of a distance, and the text on it; null where the comparison is not coloured by distance. @param {Comparison} info @param {number} distance */
function distanceStyle(info, distance) {
  const shade = info.measured ? shadeOf(distance) : NaN;
  return Number.isNaN(shade) ? null : `background: var(--d${shade}); fill: var(--d${shade}); color: var(--on${shade})`;
}

/** How far a row is apart where it is drawn once: its outputs, or where it has none its inputs. @param {Rows} rows @param {number} row */
const distanceOf = (rows, row) => (Number.isNaN(rows.out[row]) ? rows.in[row] : rows.out[row]);

/** What differences of a comparison are called. @param {Comparison} info */
const differenceName = (info) => (info.measured ? TEXTS.distance : TEXTS.difference);

onComparison(() => {
  const { info, columns } = state.rows;
  const box = byId("scale");
  box.hidden = columns.golden === 0;
  box.title = info.measured ? TEXTS.measured : TEXTS.unmeasured;
  const colours = Array.from({ length: SHADES + 1 }, (_, at) => `var(--d${at})`);
  box.replaceChildren(
    info.measured ? el("i", { style: `background: linear-gradient(0deg, ${colours.join(", ")})` }) : "",
    ...[0, -2, -4, -6, -8].map((power) => el("span", { style: `bottom: ${placeOn(10 ** power) * 100}%` }, power ? `1e${power}` : "1")),
    el("b", {}, info.measured ? TEXTS.distance : TEXTS.short)
  );
});
