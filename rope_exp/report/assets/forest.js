// The forest: paired differences to the reference with their intervals, and the margin as a band.

const DIAMOND = "M0,-1.3L1.3,0L0,1.3L-1.3,0Z";
const CROSS = "M-.8,-.8L.8,.8M.8,-.8L-.8,.8";
// From these widths on there is room for differences beside the rows, and for intervals, too.
const WITH_NUMBERS = 440;
const WITH_INTERVALS = 760;

function drawForest(level, reference) {
  const width = byId("forest").clientWidth;
  const against = level.against[reference].rows;
  const values = level.rows
    .filter((row) => (against[row.label].delta ?? null) !== null)
    .map((row) => forestRow(row, against[row.label], row.label === reference));

  const name = level.rows.find((row) => row.label === reference).name;
  const x = {
    type: "quantitative",
    title: forestTitle(name, level.unit, width),
    scale: { nice: false, zero: true },
    axis: { labelExpr: SIGNED, tickCount: width > WITH_NUMBERS ? 6 : 4 },
  };
  const names = values.map((row) => row.name);
  const y = {
    field: "name",
    type: "nominal",
    sort: names,
    scale: { domain: names },
    title: null,
    axis: {
      domain: false,
      ticks: false,
      labelColor: "var(--ink)",
      labelFontSize: 13,
      labelLimit: 170,
    },
  };
  return draw("forest", {
    width: "container",
    height: 28 * values.length,
    padding: { left: 0, top: 6, right: 4, bottom: 4 },
    autosize: { type: "fit-x", contains: "padding" },
    data: { values },
    layer: [...forestMarks(values, x, y), ...forestWords(y, width)],
  });
}

function forestRow(row, difference, isReference) {
  const isSettled = difference.word && difference.word !== "open";
  const verdict = marked(isReference ? "reference" : difference.word ?? "not tested", row);
  const word = verdict + (difference.needed ? `, ${difference.needed} seeds in all` : "");

  const number = isReference ? "" : signed(difference.delta);
  const ends = [signed(difference.low), signed(difference.high)];
  const interval = difference.word ? `[${ends.join(", ")}]` : "";
  return {
    ...difference,
    name: row.name,
    shape: difference.word === "equivalent" ? DIAMOND : "circle",
    fill: isSettled ? "var(--accent)" : "var(--paper)",
    number,
    interval,
    verdict,
    word,
    said: [row.name, number, interval, word].filter(Boolean).join(", "),
  };
}

function forestMarks(values, x, y) {
  const marks = [
    {
      name: "band",
      data: { values: [{ from: -DATA.margin, to: DATA.margin }] },
      mark: silent("rect", "var(--band)"),
      encoding: { x: { ...x, field: "from" }, x2: { field: "to" } },
    },
    ruleAt("zero", "x", 0, "var(--ink)"),
  ];

  // A layer without data would have a scale without ends.
  const judged = values.filter((row) => row.low !== undefined);
  const bar = (name, low, high, mark) => ({
    name,
    data: { values: judged },
    mark,
    encoding: { x: { ...x, field: low }, x2: { field: high }, y },
  });
  if (judged.length) {
    const thin = silent("rule", "var(--ink)", { strokeWidth: 1.2 });
    const thick = silent("rule", "var(--accent)", { strokeWidth: 5 });
    marks.push(bar("wide", "wide_low", "wide_high", thin));
    marks.push(bar("interval", "low", "high", thick));
  }

  const published = values.filter((row) => row.published !== null);
  if (published.length) {
    marks.push({
      name: "theirs",
      data: { values: published },
      mark: silent("point", "var(--muted)", { shape: CROSS, size: 70, strokeWidth: 1.6 }),
      encoding: { x: { ...x, field: "published" }, y },
    });
  }

  marks.push({
    name: "ours",
    mark: { type: "point", size: 80, stroke: "var(--accent)", strokeWidth: 2, opacity: 1 },
    encoding: {
      x: { ...x, field: "delta" },
      y,
      shape: literal("shape"),
      fill: literal("fill"),
      description: { field: "said" },
    },
  });
  return marks;
}

/** Write the numbers and the verdict of each row beside it, in columns. */
function forestWords(y, width) {
  const column = (name, field, align, dx) => ({
    name,
    mark: silent("text", "var(--ink)", { align, dx, fontSize: 12.5 }),
    encoding: { x: { value: { expr: "width" } }, y, text: { field } },
  });
  if (width < WITH_NUMBERS) return [column("words", "verdict", "left", 12)];

  const numbers = column("numbers", "number", "right", 72);
  if (width < WITH_INTERVALS) return [numbers, column("words", "word", "left", 86)];

  const intervals = column("intervals", "interval", "left", 84);
  return [numbers, intervals, column("words", "word", "left", 232)];
}

function forestTitle(name, unit, width) {
  const space = "\u00a0".repeat(4);
  const what = `loss minus ${name}’s (${unit})`;
  const ways = ["← better", "worse →"];
  return width > WITH_NUMBERS ? ways.join(space + what + space) : [what, ways.join(space + space)];
}
