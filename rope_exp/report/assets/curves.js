// Curves: validation losses, and differences to the reference, by training tokens.

// How far the axis of tokens goes beyond the last, so that the last marks are whole.
const AIR = 1.02;

/** Draw validation losses: means over finished seeds, and each seed thin. */
function drawLosses(level) {
  const { tokens, rows } = level.curves;
  const means = [];
  const seeds = [];
  for (const row of level.rows) {
    const curve = rows[row.label];
    means.push(...points(tokens, curve.mean, { row: row.label }));
    for (const { seed, status, loss } of curve.seeds) {
      seeds.push(...points(tokens, loss, { row: row.label, seed, status }));
    }
  }
  return draw("losses", curvesSpec(level, means, seeds, level.unit));
}

/** Draw the mean differences to the reference. */
function drawDifferences(level, reference) {
  const { tokens } = level.curves;
  const found = level.against[reference].differences;
  const means = level.rows.flatMap((row) => points(tokens, found[row.label], { row: row.label }));
  return draw("differences", curvesSpec(level, means, [], `${level.unit}; up is worse`, SIGNED));
}

/** Pair tokens with the values that there are. */
function points(tokens, values, facts) {
  return tokens
    .map((at, number) => ({ tokens: at, value: values[number], ...facts }))
    .filter((point) => point.value !== null);
}

function curvesSpec(level, means, seeds, title, signs = "") {
  const last = level.curves.tokens.at(-1) ?? 1;
  const zero = signs ? [ruleAt("zero", "y", 0, "var(--ink)")] : [];
  return {
    width: "container",
    height: 300,
    padding: { left: 0, top: 8, right: 14, bottom: 4 },
    autosize: { type: "fit-x", contains: "padding" },
    params: [
      { name: "at", value: last },
      { name: "focus", value: "" },
    ],
    layer: [
      ...zero,
      ruleAt("at", "x", { expr: "at" }, "var(--line)"),
      ...curvesMarks(level, means, seeds, curvesAxes(last, means, seeds, title, signs)),
    ],
  };
}

function curvesAxes(last, means, seeds, title, signs) {
  const finished = seeds.filter((point) => point.status === "finished");
  const domain = fitted(means.length ? [...means, ...finished] : seeds, last);
  return {
    x: {
      field: "tokens",
      type: "quantitative",
      title: "training tokens",
      scale: { domain: [0, AIR * last], nice: false },
      axis: { labelExpr: "format(datum.value, '~s')", grid: false, tickCount: 5 },
    },
    y: {
      field: "value",
      type: "quantitative",
      title,
      scale: { domain, nice: false, zero: false },
      axis: { labelExpr: signs || "format(datum.value, '~g')", tickCount: 6 },
    },
  };
}

function curvesMarks(level, means, seeds, axes) {
  const labels = level.rows.map((row) => row.label);
  const byRow = (range) => ({
    field: "row",
    type: "nominal",
    scale: { domain: labels, range },
    legend: null,
  });
  // A row that is pointed at stands alone.
  const opacity = (value) => ({
    condition: { test: "focus == '' || datum.row == focus", value },
    value: 0.08,
  });

  const colors = byRow(level.rows.map(rowColor));
  const encoding = { ...axes, color: colors };
  const strokeDash = byRow(level.rows.map((row) => (row.dash.length ? row.dash : [1, 0])));
  const rows = new Map(level.rows.map((row) => [row.label, row]));
  const symbols = (name, path, mark, more) => ({
    name,
    data: { values: means.map((point) => ({ ...point, path: rows.get(point.row)[path] })) },
    mark: { type: "point", clip: true, size: 56, aria: false, ...mark },
    encoding: { ...axes, ...more, shape: literal("path"), opacity: opacity(1) },
  });
  return [
    {
      name: "seeds",
      data: { values: seeds },
      mark: { type: "line", clip: true, strokeWidth: 0.8, aria: false },
      encoding: { ...encoding, detail: { field: "seed" }, strokeOpacity: opacity(0.4) },
    },
    {
      name: "means",
      data: { values: means },
      mark: { type: "line", clip: true, strokeWidth: 2 },
      encoding: { ...encoding, strokeDash, strokeOpacity: opacity(1) },
    },
    // An outline, and what of it is filled.
    symbols("marks", "path", { strokeWidth: 1.2, fill: "var(--paper)" }, { stroke: colors }),
    symbols("filled", "fill", { stroke: null }, { fill: colors }),
  ];
}

/** Return limits that hold the points after the steep beginning, with some air. */
function fitted(values, last) {
  const heights = values
    .filter((point) => point.tokens >= DATA.shown_from * last)
    .map((point) => point.value);
  if (!heights.length) return [0, 1];

  const low = Math.min(...heights);
  const high = Math.max(...heights);
  const air = 0.05 * (high - low) || 0.1;
  return [low - air, high + air];
}
