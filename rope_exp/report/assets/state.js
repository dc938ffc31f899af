// What is shown: a level, a reference, and how tables are sorted. It all stands in the address.

const PACKED = JSON.parse(document.getElementById("data").textContent);
const DATA = unpacked(PACKED.data);

/** Put back what stands in many places, and was kept once. */
function unpacked(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(unpacked);
  if (Number.isInteger(value["="])) return unpacked(PACKED.shared[value["="]]);
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, unpacked(each)]));
}

/** Return the element with this id. */
function byId(id) {
  return document.getElementById(id);
}

/** Make an element that holds text, never markup. */
function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

/** Make an element of SVG. */
function makeSvg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Return what the address asks for; the level that is nearest to it where there is none. */
function readState() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const wanted = {};
  for (const { key } of DATA.facets) {
    if (asked.has(key)) wanted[key] = asked.get(key);
  }

  const level = nearestLevel(wanted);
  const state = { level, reference: null, sort: {}, all: asked.get("runs") === "all", missed: [] };
  if (level) {
    state.missed = Object.keys(wanted).filter((key) => level.facets[key] !== wanted[key]);
    const reference = asked.get("reference");
    const known = reference !== null && Object.hasOwn(level.against, reference);
    state.reference = known ? reference : level.reference;
  }
  for (const id of ["rows", "runs"]) {
    const sort = Number.parseInt(asked.get(`sort-${id}`), 10);
    if (sort) state.sort[id] = sort;
  }
  return state;
}

/** Return the address of a state. */
function address(state) {
  const said = new URLSearchParams();
  for (const { key, values } of DATA.facets) {
    if (state.level && values.length > 1) said.set(key, state.level.facets[key]);
  }
  if (state.reference) said.set("reference", state.reference);
  for (const [id, sort] of Object.entries(state.sort)) said.set(`sort-${id}`, String(sort));
  if (state.all) said.set("runs", "all");
  return `#${said}`;
}

/**
 * Return the level with most of the wanted values.
 *
 * `first` is a key whose value is worth more than all others: what the reader has just chosen.
 */
function nearestLevel(wanted, first = "") {
  const start = DATA.levels[DATA.start];
  let best = start;
  let most = score(start);

  function score(level) {
    if (!level) return -1;
    let found = 0;
    for (const [key, value] of Object.entries(wanted)) {
      if (level.facets[key] === value) found += key === first ? DATA.facets.length : 1;
    }
    return found;
  }

  for (const level of DATA.levels) {
    const here = score(level);
    if (here > most) {
      best = level;
      most = here;
    }
  }
  return best;
}

/** Go to a state: the address changes, and the page is drawn from it. */
function go(state) {
  location.hash = address(state);
}
