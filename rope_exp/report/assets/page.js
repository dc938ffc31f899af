// The page: controls, and drawing what the address says.

let shown = null;
let said = "";
const NEAREST = "The address asks for what the records do not hold; this is the nearest.";

/** Make the controls once: one select for each facet with several values, and the reference. */
function makeControls() {
  const form = byId("controls");
  for (const { key, title, values } of DATA.facets) {
    if (values.length > 1) form.append(control(key, title, values.map((value) => [value, value])));
  }
  form.append(control("reference", "Reference", []));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => choose(event.target.name, event.target.value));
}

function control(key, title, options) {
  const label = make("label", title);
  const select = make("select");
  select.name = key;
  select.id = `choose-${key}`;
  setOptions(select, options);
  label.append(select);
  return label;
}

function setOptions(select, options) {
  const made = options.map(([value, text]) => {
    const option = make("option", text);
    option.value = value;
    return option;
  });
  select.replaceChildren(...made);
}

/** Go to where one choice leads; what had to change with it is said. */
function choose(key, value) {
  if (key === "reference") {
    go({ ...shown, reference: value });
    return;
  }

  const level = nearestLevel({ ...shown.level.facets, [key]: value }, key);
  const { facets } = shown.level;
  const others = DATA.facets.filter((of) => of.key !== key);
  const moved = others.filter((of) => level.facets[of.key] !== facets[of.key]);
  said = moved.map((of) => `${of.title} is now ${level.facets[of.key]}.`).join(" ");
  const known = Object.hasOwn(level.against, shown.reference);
  go({ ...shown, level, reference: known ? shown.reference : level.reference });
}

/** Draw all that the address asks for. */
async function render() {
  shown = readState();
  const state = shown;
  byId("status").textContent = said || (shown.missed.length ? NEAREST : "");
  said = "";

  const { level, reference } = shown;
  byId("controls").hidden = byId("of-level").hidden = !level;
  byId("nothing").hidden = Boolean(level);
  showRuns();
  if (level) {
    showControls();
    showTexts();
    showTables();
    await showCharts();
  }
  // Unless another was asked for meanwhile.
  if (shown === state) document.body.dataset.drawn = location.hash || "#";
}

function showControls() {
  const { level, reference } = shown;
  for (const { key } of DATA.facets) {
    const select = byId(`choose-${key}`);
    if (select) select.value = level.facets[key];
  }
  const known = level.rows.filter((row) => Object.hasOwn(level.against, row.label));
  const select = byId("choose-reference");
  setOptions(select, known.map((row) => [row.label, row.name]));
  select.value = reference ?? "";
  select.parentElement.hidden = known.length < 2;
}

function showTexts() {
  const { level, reference } = shown;
  const against = level.against[reference];
  const name = level.rows.find((row) => row.label === reference)?.name ?? "the reference";
  for (const place of document.querySelectorAll(".reference")) place.textContent = name;

  byId("unit").textContent = level.unit;
  byId("margin-unit").textContent = level.margin_unit;

  // A line never breaks within a name.
  byId("summary").textContent = level.summary.replaceAll("-RoPE", "\u2011RoPE");
  byId("caption").textContent = against?.caption ?? "No run of this level has finished.";
  fillList("assumptions", level.assumptions);
  fillList("notes", against?.notes ?? []);
}

function fillList(id, texts) {
  byId(id).replaceChildren(...texts.map((text) => make("li", text)));
}

// -- tables ---------------------------------------------------------------------------------------

function sorting(id) {
  const onSort = (sort) => {
    go({ ...shown, sort: { ...shown.sort, [id]: sort } });
  };
  return { sort: shown.sort[id] ?? 0, onSort };
}

function showTables() {
  const { level, reference } = shown;
  const against = level.against[reference];
  drawGrid(byId("grid"), level, reference);
  byId("grid-section").hidden = !level.rows.some((row) => row.cell);
  if (against) fillTable(byId("rows"), against.table, { ...sorting("rows"), mark: reference });
  fillTable(byId("answers"), level.answers);
  byId("answers-section").hidden = !level.answers.rows.length;
  byId("published-mark").hidden = level.published === null;
  byId("published").textContent = level.published;
  byId("source").textContent = level.source;
  fillTable(byId("relations"), level.relations);
  byId("relations-section").hidden = !level.relations.rows.length;
}

function showRuns() {
  const { level, all } = shown;
  const keep = level && !all ? new Set(level.runs) : null;
  const count = fillTable(byId("runs"), DATA.runs, { ...sorting("runs"), keep });
  byId("all").checked = all || !level;
  byId("all-label").hidden = !level;
  byId("runs-count").textContent = `${count} of ${DATA.runs.rows.length} runs shown`;
}

// -- charts ---------------------------------------------------------------------------------------

async function showCharts() {
  const { level, reference } = shown;
  for (const id of ["forest", "losses", "differences"]) byId(id).parentElement.hidden = !reference;
  if (!reference) return;

  const views = await Promise.all([
    drawForest(level, reference),
    drawLosses(level),
    drawDifferences(level, reference),
  ]);
  // Null: a later choice is being drawn already.
  if (views.includes(null)) return;
  showReadout(level, reference, views.slice(1));
}

/** Show the values at some tokens, which pointer and slider choose. */
function showReadout(level, reference, views) {
  const { tokens, rows } = level.curves;
  const found = level.against[reference].differences;
  const slider = byId("at");
  slider.max = String(tokens.length - 1);
  slider.value = slider.max;

  function focus(label) {
    for (const view of views) view.signal("focus", label).runAsync();
  }

  function show() {
    const number = Number(slider.value);
    const at = `${tokens[number].toLocaleString("en")} tokens`;
    byId("at-tokens").textContent = at;
    slider.setAttribute("aria-valuetext", at);
    for (const view of views) view.signal("at", tokens[number]).runAsync();

    const values = level.rows.map((row) => ({
      row,
      loss: rows[row.label].mean[number],
      delta: found[row.label][number],
    }));
    values.sort((a, b) => compareKeys(a.loss, b.loss, 1));
    fillValues(values, reference, focus);
  }

  slider.oninput = show;
  for (const id of ["losses", "differences"]) {
    byId(id).onpointermove = (event) => {
      const number = pointedAt(byId(id), event, tokens);
      if (number === null || number === Number(slider.value)) return;
      slider.value = String(number);
      show();
    };
  }
  show();
}

/** Return which of the tokens are nearest to the pointer. */
function pointedAt(place, event, tokens) {
  const plot = place.querySelector(".root > g > .background")?.getBoundingClientRect();
  if (!plot?.width) return null;
  const pointed = ((event.clientX - plot.left) / plot.width) * AIR * tokens.at(-1);
  let best = 0;
  tokens.forEach((at, number) => {
    if (Math.abs(at - pointed) < Math.abs(tokens[best] - pointed)) best = number;
  });
  return best;
}

function fillValues(values, reference, focus) {
  const head = make("tr");
  head.append(make("th", "row"), make("th", "loss", "number"), make("th", "Δ", "number"));
  const lines = values.map(({ row, loss, delta }) => {
    const line = make("tr", "", row.label === reference ? "marked" : "");
    const name = make("th");
    name.scope = "row";
    name.append(swatch(row), row.name);
    const text = loss === null ? row.verdict || DASH : spelledLoss(loss);
    line.append(name, make("td", text, "number"));
    line.append(make("td", row.label === reference ? "" : signed(delta), "number"));
    line.onpointerenter = () => focus(row.label);
    line.onpointerleave = () => focus("");
    return line;
  });
  byId("values").replaceChildren(head, ...lines);
}

// -- once -----------------------------------------------------------------------------------------

function begin() {
  byId("num-runs").textContent = DATA.runs.rows.length;
  byId("hours").textContent = DATA.hours.toLocaleString("en");
  byId("margin").textContent = `±${DATA.margin}`;
  byId("shown-from").textContent = `${100 * DATA.shown_from} %`;

  makeControls();
  byId("all").addEventListener("change", (event) => go({ ...shown, all: event.target.checked }));
  addEventListener("hashchange", render);

  // The words beside the forest depend on its width.
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width === innerWidth || !shown.reference) return;
    width = innerWidth;
    drawForest(shown.level, shown.reference);
  });
  render();
}

begin();
