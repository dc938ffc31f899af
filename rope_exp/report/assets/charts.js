// Charts, by Vega-Lite. Their colours are variables of the style, so dark and print are its affair.

// Expressions are interpreted: the page's policy forbids what makes code of text.
const EMBED = {
  mode: "vega-lite",
  ast: true,
  actions: false,
  defaultStyle: false,
  renderer: "svg",
  tooltip: false,
};
const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";
const CONFIG = {
  font: FONT,
  background: null,
  view: { stroke: null },
  axis: {
    domainColor: "var(--line)",
    gridColor: "var(--faint)",
    tickColor: "var(--line)",
    labelColor: "var(--muted)",
    titleColor: "var(--muted)",
    labelFontSize: 12,
    titleFontSize: 12,
    titleFontWeight: 400,
    titlePadding: 10,
    labelPadding: 6,
  },
};
// A number of an axis with its sign; 0 has none.
const SIGNED = "datum.value == 0 ? '0' : format(datum.value, '+~g')";

// By the place's id: what stands there, and how often it was asked for.
const drawn = new Map();

/** Draw a chart in place of the one that is there. */
async function draw(id, spec) {
  const place = byId(id);
  const request = (drawn.get(id)?.request ?? 0) + 1;
  drawn.set(id, { ...drawn.get(id), request });

  const stage = make("div", "", "stage");
  place.append(stage);
  const result = await vegaEmbed(stage, { ...spec, config: CONFIG }, EMBED);
  // Another choice was made while this one was drawn.
  if (drawn.get(id).request !== request) {
    result.finalize();
    stage.remove();
    return null;
  }

  drawn.get(id).result?.finalize();
  for (const old of [...place.children]) {
    if (old !== stage) old.remove();
  }
  drawn.set(id, { request, result });
  return result.view;
}

/** A row's colour; dark paper lifts it, the darker the more. */
function rowColor(row) {
  const parts = [1, 3, 5].map((at) => Number.parseInt(row.color.slice(at, at + 2), 16) / 255);
  const light = (parts[0] + parts[1] + parts[2]) / 3;
  const share = (1.6 - 1.2 * light).toFixed(2);
  return `color-mix(in oklab, ${row.color}, white calc(var(--lift) * ${share}))`;
}

/** Make the line and marker by which a row is known. */
function swatch(row) {
  const svg = makeSvg("svg", { viewBox: "-16 -6 32 12", class: "swatch", "aria-hidden": "true" });
  const dashes = { "stroke-width": 2, "stroke-dasharray": row.dash.join(" ") };
  const line = makeSvg("path", { d: "M-16 0H16", ...dashes });
  const marker = makeSvg("path", { d: row.path, transform: "scale(4.5)", "stroke-width": 0.3 });
  const filled = makeSvg("path", { d: row.fill, transform: "scale(4.5)" });
  line.style.stroke = rowColor(row);
  marker.style.stroke = rowColor(row);
  marker.style.fill = "var(--paper)";
  filled.style.fill = rowColor(row);
  svg.append(line, marker, filled);
  return svg;
}

/** Return a mark that is not read aloud: what it shows is said elsewhere. */
function silent(type, color, more = {}) {
  return { type, color, aria: false, ...more };
}

/** A rule at one value of a scale, drawn once. */
function ruleAt(name, channel, datum, color) {
  const encoding = { [channel]: { datum, type: "quantitative" } };
  return { name, data: { values: [{}] }, mark: silent("rule", color), encoding };
}

/** Return an encoding that is what a field says, not a place on a scale. */
function literal(field) {
  return { field, type: "nominal", scale: null, legend: null };
}
