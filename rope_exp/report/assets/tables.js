// Tables: sorted by a click on a heading, and the grid of the sixteen subsets.

const DASH = "—";

/** Spell a difference: a sign, four digits, and a true minus. */
function signed(value, digits = 4) {
  if (value === null || value === undefined) return DASH;
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return (value < 0 ? "−" : "+") + text;
}

/** Spell a loss. */
function spelledLoss(value) {
  return value === null || value === undefined ? DASH : value.toFixed(4);
}

/** A cell's text, and what it sorts by: the text, unless the cell is a pair. */
function cellText(cell) {
  return Array.isArray(cell) ? cell[0] : cell;
}

function cellKey(cell) {
  return Array.isArray(cell) ? cell[1] : cell;
}

/** Order two keys: numbers by size, texts by letters, nothing last whichever way. */
function compareKeys(a, b, direction) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * String(a).localeCompare(String(b), "en");
}

/**
 * Fill a table.
 *
 * `sort` is the number of a column from 1, negative where it falls; `onSort`, which takes the next
 * such number, makes the headings buttons. `mark` names the row that stands out.
 */
function fillTable(table, content, { sort = 0, onSort = null, mark = "", keep = null } = {}) {
  const column = Math.abs(sort) - 1;
  let rows = keep ? content.rows.filter((row) => keep.has(row.id)) : [...content.rows];
  if (column >= 0 && column < content.columns.length) {
    const direction = Math.sign(sort);
    rows.sort((a, b) => compareKeys(cellKey(a.cells[column]), cellKey(b.cells[column]), direction));
  }

  const head = make("tr");
  content.columns.forEach((of, number) => {
    head.append(headCell(of, number + 1, sort, onSort));
  });
  const body = make("tbody");
  for (const row of rows) {
    const line = make("tr", "", row.id === mark ? "marked" : "");
    row.cells.forEach((cell, number) => {
      line.append(bodyCell(cellText(cell), content.columns[number].kind, number === 0));
    });
    body.append(line);
  }

  const top = make("thead");
  top.append(head);
  table.replaceChildren(top, body);
  return rows.length;
}

function headCell(column, number, sort, onSort) {
  const cell = make("th", onSort ? "" : column.title, column.kind);
  cell.scope = "col";
  if (!onSort) return cell;

  const chosen = Math.abs(sort) === number;
  const arrow = chosen ? (sort > 0 ? "▲" : "▼") : "↕";
  const button = make("button", column.title);
  const sign = make("span", arrow, chosen ? "arrow" : "arrow faint");
  sign.setAttribute("aria-hidden", "true");
  button.type = "button";
  button.append(sign);
  button.addEventListener("click", () => onSort(sort === number ? -number : number));
  cell.setAttribute("aria-sort", chosen ? (sort > 0 ? "ascending" : "descending") : "none");
  cell.append(button);
  return cell;
}

function bodyCell(text, kind, isFirst) {
  const cell = make(isFirst ? "th" : "td", "", kind);
  if (isFirst) cell.scope = "row";
  cell.append(kind === "code" ? make("code", text) : text);
  return cell;
}

// -- the grid -------------------------------------------------------------------------------------

const PARTS = {
  rows: [["", "neither"], ["q", "Q"], ["k", "K"], ["qk", "Q and K"]],
  columns: [["", "neither"], ["v", "V"], ["o", "O"], ["vo", "V and O"]],
};

/** Draw the sixteen subsets: Q/K part down, V/O part across. */
function drawGrid(table, level, reference) {
  const cells = new Map();
  for (const row of level.rows) {
    if (row.cell) cells.set(row.cell.join("|"), row);
  }
  const against = level.against[reference]?.rows ?? {};
  const sizes = Object.values(against).map((row) => Math.abs(row.delta ?? 0));
  const largest = Math.max(...sizes, 0) || 1;

  const top = make("tr");
  top.append(corner());
  for (const [, name] of PARTS.columns) {
    const cell = make("th", name);
    cell.scope = "col";
    top.append(cell);
  }
  const lines = PARTS.rows.map(([queries, name]) => {
    const line = make("tr");
    const heading = make("th", name);
    heading.scope = "row";
    line.append(heading);
    for (const [values] of PARTS.columns) {
      const row = cells.get(`${queries}|${values}`);
      line.append(gridCell(row, row && against[row.label], reference, largest));
    }
    return line;
  });
  table.replaceChildren(top, ...lines);
}

function corner() {
  const cell = make("td", "", "corner");
  cell.append(make("span", "Q, K ↓"), make("span", "V, O →"));
  return cell;
}

/** A verdict's word, and how many runs it is without; no line breaks within the latter. */
function marked(word, row) {
  return row.mark ? `${word} ${row.mark.replaceAll(" ", "\u00a0")}` : word;
}

function gridCell(row, difference, reference, largest) {
  if (!row) return make("td", "not run", "missing");

  const cell = make("td", "", "subset");
  const published = difference?.published ?? null;
  cell.append(make("span", published === null ? "" : signed(published, 3), "published"));
  cell.append(make("span", row.name, "name"));
  if (row.label === reference) {
    cell.classList.add("is-reference");
    cell.append(make("strong", spelledLoss(row.loss)), make("span", marked("reference", row), "word"));
    return cell;
  }

  const delta = difference?.delta ?? null;
  cell.append(make("strong", delta === null ? spelledLoss(row.loss) : signed(delta)));
  const word = row.verdict || (difference?.word ?? (delta === null ? "no Δ" : "not tested"));
  cell.append(make("span", marked(word, row), "word"));
  if (delta !== null) {
    const share = Math.round((40 * Math.abs(delta)) / largest);
    cell.classList.add(delta < 0 ? "better" : "worse");
    cell.style.setProperty("--share", `${share}%`);
  }
  return cell;
}
