// The menu, the figures of the setting that it shows, and tables that sort by a click.

const byId = (id) => document.getElementById(id);
const menu = byId("choose-setting");
const settings = [...document.querySelectorAll(".setting")];

// -- figures --------------------------------------------------------------------------------------

// Expressions are interpreted (`ast`): the page's policy forbids making code from text.
const EMBED = {
  mode: "vega-lite",
  ast: true,
  actions: false,
  defaultStyle: false,
  renderer: "svg",
  tooltip: showTooltip,
  config: JSON.parse(byId("config").textContent),
};

/** Show the texts of the mark under the pointer. Vega's own tooltips would need inline style. */
function showTooltip(handler, event, item, value) {
  const tooltip = byId("tooltip");
  tooltip.hidden = !value;
  if (!value) return;

  const lines = Object.entries(value).filter(([, text]) => text !== "" && text !== "null");
  tooltip.replaceChildren(
    ...lines.map(([name, text]) => {
      const line = document.createElement("div");
      line.textContent = `${name}: ${text}`;
      return line;
    }),
  );
  const room = document.documentElement.clientWidth - tooltip.offsetWidth - 8;
  tooltip.style.left = `${Math.max(8, Math.min(event.clientX + 14, room))}px`;
  tooltip.style.top = `${event.clientY + 14}px`;
}

/** Draw a figure when it is first shown. */
async function draw(figure) {
  const data = figure.querySelector("script");
  if (!data) return;
  data.remove();
  await vegaEmbed(figure.querySelector(".chart"), JSON.parse(data.textContent), EMBED);
}

// -- the menu -------------------------------------------------------------------------------------

/** Show the setting that the address names, or the first. */
async function show() {
  // The address is encoded, so ids are, too: an address that somebody typed may not decode.
  const isShown = ({ id }) => [`#${id}`, `#${encodeURI(id)}`].includes(location.hash);
  const shown = settings.find(isShown) ?? settings[0];
  for (const setting of settings) setting.hidden = setting !== shown;
  if (shown) {
    menu.value = shown.id;
    for (const figure of shown.querySelectorAll("figure")) await draw(figure);
  }
  document.body.dataset.drawn = location.hash || "#";
}

menu?.addEventListener("change", () => {
  // Unlike a change of the hash, this does not scroll.
  history.pushState(null, "", `#${menu.value}`);
  show();
});
addEventListener("hashchange", async () => {
  await show();
  settings.find((setting) => !setting.hidden)?.scrollIntoView();
});

// -- tables ---------------------------------------------------------------------------------------

/** Order two keys: numbers by size, texts by letters, missing ones last either way. */
function compare(a, b, direction) {
  if (!a || !b) return Boolean(b) - Boolean(a);
  const difference = a - b;
  return direction * (Number.isNaN(difference) ? a.localeCompare(b, "en") : difference);
}

function sort(heading) {
  const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");

  const body = heading.closest("table").tBodies[0];
  const keyOf = (row) => {
    const cell = row.cells[heading.cellIndex];
    return cell.dataset.key ?? cell.textContent;
  };
  body.append(...[...body.rows].sort((a, b) => compare(keyOf(a), keyOf(b), direction)));
}

document.addEventListener("click", (event) => {
  const heading = event.target.closest("thead button")?.parentElement;
  if (heading) sort(heading);
});

if (menu) byId("menu").hidden = false;
show();
