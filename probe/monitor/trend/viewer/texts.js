// Every text of the page that does not come with the data, so that a second language is a second table.

const TEXTS = {
  noData: "This page holds no data. Make it again with: msprobe trend DIR -o OUT",
  otherFormat: "The data of this page has format {0}, its scripts read {1}: make the page again.",
  healthy: "No alert", alerts: ["{0} alert", "{0} alerts"], ranks: ["{0} rank", "{0} ranks"], steps: ["{0} step", "{0} steps"],
  go: "show", firstDifference: "first difference: {0}", noDifference: "no difference beyond rounding in {0} rows",
  family: "family", statistic: "statistic", shown: "values", rank: "rank", axis: "axes", search: "filter: words, /regex/",
  order: "order", orders: { execution: "execution", name: "name" },
  modes: {
    ratio: "ratio to median", raw: "value, log scale", z: "robust z of row", change: "change per step",
    other: "ratio to {0}",
  },
  otherRun: "the other run", module: "module", parameter: "parameter", row: "row",
  axes: { rows: "rows × steps", ranks: "ranks × steps" },
  aggregated: { min: "minimum over ranks", median: "median over ranks", max: "maximum over ranks" },
  nan: "NaN or infinity", nanAbove: "marks above the lines: NaN or infinity", missing: "no value", alert: "alert", first: "first difference", selected: "selected",
  noRows: "No row matches the filter.", badSearch: "Not understood: {0}",
  step: "step", ofRank: "rank {0}", ofRanks: "ranks {0}", noAlerts: "No rule reports a row of this run.", more: "{0} more: msprobe monitor report --json",
  theme: "Light or dark", help: "Keys", close: "Close", band: "the band is minimum to maximum over the ranks", unpin: "remove this line",
  keys: {
    "click": "shows the row as a line over the steps; with Shift it is added to the lines",
    "arrow keys": "move the selected cell", "n, p": "next and previous alert", "/": "filter", "f": "first alert",
    "r": "ranks of the selected row, and back", "Escape": "clears the filter",
  },
};
