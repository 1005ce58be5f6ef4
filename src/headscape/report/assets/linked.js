// Pictures of heads that move together: one head is selected, one colouring holds, everywhere.

const state = { head: -1, colour: "layer", folder: null };
const views = []; // {box, mark(head), paint(), move(dx, dy)}
const listeners = []; // called with the selected head

function select(head) {
  if (head < 0 || head >= heads.length || head === state.head) return;
  state.head = head;
  document.body.dataset.head = headId(head);
  for (const view of views) {
    if (view.ready) view.mark(head);
    view.box.dataset.selected = headId(head);
  }
  for (const listener of listeners) listener(head);
  byId("live").textContent = `${headName(head)} selected`;
}

// ---------------------------------------------------------------- colour

const figures = {};
for (const [id, figure] of Object.entries(data.figures)) figures[id] = figure;
const opened = (id) => {
  const figure = figures[id];
  if (!figure.open) {
    figure.open = true;
    if (figure.type === "linked") figure.data = unpack(figure.data);
    if (figure.type === "plot") { figure.traces = unpack(figure.traces); figure.layout = unpack(figure.layout); }
    if (figure.type === "maps") figure.panels = unpack(figure.panels);
  }
  return figure;
};
const firstOf = (kind) => Object.keys(figures).find((id) => figures[id].type === "linked" && figures[id].kind === kind);
const columns = data.columns.map((column) => ({ ...column, values: unpack(column.values) }));
const treeId = firstOf("head_tree");

// the folder of every head at a level of the first tree, -1 for heads it does not hold
function foldersAt(level) {
  const { data: tree, rows } = opened(treeId);
  const labels = new Array(heads.length).fill(-1);
  rows.forEach((head, row) => { labels[head] = tree.labels[level][row]; });
  const name = (folder) => tree.names?.[`${level}:${folder}`] || `folder ${folder}`;
  return { labels, name, count: 1 + labels.reduce((a, b) => Math.max(a, b), 0) };
}

function choices() {
  const groups = [["Place", [["layer", "layer"]]]];
  if (manyBlocks) groups[0][1].push(["block", "block"]);
  const words = [], numbers = [];
  columns.forEach((column, i) => (column.number ? numbers : words).push([`column:${i}`, column.name]));
  if (words.length) groups.push(["Role", words]);
  if (treeId) {
    const levels = opened(treeId).data.labels;
    const folders = [];
    for (let l = 1; l < levels.length - 1; l++) folders.push([`folder:${l}`, `folder, level ${l} (${foldersAt(l).count} folders)`]);
    if (folders.length) groups.push(["Folder of the head tree", folders]);
  }
  if (numbers.length) groups.push(["Score", numbers]);
  return groups;
}

function fillMenu(menu, chosen) {
  menu.replaceChildren(...choices().map(([label, items]) => (
    el("optgroup", { label }, ...items.map(([value, text]) => el("option", { value, text })))
  )));
  menu.value = chosen;
  if (menu.selectedIndex < 0) menu.value = "layer";
}

function byCategory(words, title, order = null) {
  const counts = new Map();
  for (const word of words) if (word !== null && word !== undefined) counts.set(word, (counts.get(word) || 0) + 1);
  const most = theme.c.length - 1; // the last colour is grey, for the rest
  const common = [...counts.keys()].sort((a, b) => (order ? order(a) - order(b) : counts.get(b) - counts.get(a)));
  const kept = common.slice(0, counts.size <= most + 1 ? most + 1 : most);
  const labels = counts.size > kept.length ? [...kept, `${counts.size - kept.length} others`] : kept;
  const values = words.map((w) => (w === null || w === undefined ? NaN : kept.includes(w) ? kept.indexOf(w) : kept.length));
  return { title, category: true, values, labels, low: -0.5, high: labels.length - 0.5, text: (i) => words[i] ?? "–" };
}

function byNumber(values, title, text = (i) => format(values[i])) {
  const sorted = Array.from(values).filter((v) => v !== null && !Number.isNaN(v)).sort((a, b) => a - b);
  const at = (q) => sorted[Math.round(q * (sorted.length - 1))];
  const clip = sorted.length >= 50; // a few extreme heads would take all the colours
  let [low, high] = sorted.length ? [at(clip ? 0.02 : 0), at(clip ? 0.98 : 1)] : [0, 1];
  if (low === high) [low, high] = [sorted[0], sorted[sorted.length - 1]];
  const below = sorted.length && sorted[0] < low, above = sorted.length && sorted[sorted.length - 1] > high;
  const flat = low === high;
  if (flat) high = low + 1;
  return { title, category: false, flat, values: Array.from(values, (v) => (v === null ? NaN : v)), low, high, below, above, text };
}

function colouring(name) {
  const [kind, which] = name.split(":");
  if (kind === "block") return byCategory(heads.map((h) => h[0]), "block");
  if (kind === "column") {
    const column = columns[which];
    return column.number ? byNumber(column.values, column.name) : byCategory(column.values, column.name);
  }
  if (kind === "folder") {
    const { labels, name: named, count } = foldersAt(Number(which));
    const words = labels.map((label) => (label < 0 ? null : named(label)));
    if (count <= theme.c.length) {
      const distinct = new Set(words.filter(Boolean)).size === count; // two folders may bear one name
      const unique = distinct ? words : words.map((w, i) => (w === null ? null : `${w} (${labels[i]})`));
      return byCategory(unique, `folder at level ${which}`, (word) => labels[unique.indexOf(word)]);
    }
    return byNumber(labels.map((label) => (label < 0 ? NaN : label)), `folder along the tree, level ${which}`, (i) => words[i] ?? "–");
  }
  return byNumber(heads.map((h) => h[1]), "layer");
}

function cssColour(paint, value) {
  if (value === null || Number.isNaN(value)) return theme.line;
  if (paint.category) return theme.c[paint.labels.length > theme.c.length ? value : value % theme.c.length];
  const share = Math.min(1, Math.max(0, (value - paint.low) / (paint.high - paint.low)));
  return `rgb(${sequential[Math.round(255 * share)].join(",")})`;
}
function plotlyScale(paint) {
  if (!paint.category) return scale(data.palette.sequential);
  const n = paint.labels.length;
  return paint.labels.flatMap((_, i) => [[i / n, theme.c[i % theme.c.length]], [(i + 1) / n, theme.c[i % theme.c.length]]]);
}

const GLYPHS = ["●", "■", "◆", "✚", "✖", "○", "□", "◇"]; // the markers of the flat map, in their order
function fillLegend(box, paint) {
  box.replaceChildren();
  if (paint.category) {
    paint.labels.forEach((label, i) => {
      const swatch = el("b", { class: "swatch", "aria-hidden": "true", text: GLYPHS[i % GLYPHS.length] });
      swatch.style.color = theme.c[i % theme.c.length];
      box.append(el("span", { title: label }, swatch, label));
    });
    return;
  }
  if (paint.flat) { box.append(el("span", { text: `all ${format(paint.low)}` })); return; }
  const bar = el("i", { class: "ramp", role: "img", "aria-label": "from low to high" });
  bar.style.background = `linear-gradient(90deg, ${data.palette.sequential.join(",")})`;
  box.append(el("span", { text: (paint.below ? "≤ " : "") + format(paint.low) }), bar, el("span", { text: (paint.above ? "≥ " : "") + format(paint.high) }));
}

function describe(head, extra = []) {
  const paint = colouring(state.colour);
  const lines = [headName(head)];
  if (state.colour !== "layer") lines.push(`${paint.title}: ${paint.text(head)}`);
  for (const column of columns.filter((c) => c.name !== paint.title).slice(0, 6)) {
    const value = column.values[head];
    if (value !== null && !Number.isNaN(value)) lines.push(`${column.name}: ${column.number ? format(value) : value}`);
  }
  return [...lines, ...extra];
}

// ---------------------------------------------------------------- moving by key

// heads by place, for the arrows: left and right change the head, up and down the layer
const places = new Map(heads.map((h, i) => [`${h[0]}|${h[1]}|${h[2]}`, i]));
const layers = [...new Map(heads.map((h) => [`${h[0]}|${h[1]}`, [h[0], h[1]]])).values()].sort((a, b) => (a[0] === b[0] ? a[1] - b[1] : 0));
function headsOf(block, layer) {
  return heads.map((h, i) => i).filter((i) => heads[i][0] === block && heads[i][1] === layer).sort((a, b) => heads[a][2] - heads[b][2]);
}
function moveInGrid(dx, dy) {
  const [block, layer, number] = heads[state.head];
  const row = layers.findIndex((l) => l[0] === block && l[1] === layer);
  if (dy) {
    const next = layers[row + dy];
    if (!next) return;
    const same = places.get(`${next[0]}|${next[1]}|${number}`);
    select(same ?? headsOf(...next).at(-1));
    return;
  }
  const line = headsOf(block, layer);
  const at = line.indexOf(state.head) + dx;
  if (at >= 0 && at < line.length) select(line[at]);
  else if (layers[row + dx]) select(headsOf(...layers[row + dx]).at(dx > 0 ? 0 : -1));
}
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
function listenToKeys(box, move) {
  box.addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(...ARROWS[event.key]);
  });
}
function alongOrder(order, rows) {
  const line = Array.from(order, (row) => rows[row]);
  return (dx, dy) => {
    const at = line.indexOf(state.head);
    const next = line[Math.max(0, Math.min(line.length - 1, (at < 0 ? 0 : at) + dx + dy))];
    select(next);
  };
}

function addView(box, view) {
  view.box = box;
  views.push(view);
  view.ready = false;
  box.dataset.selected = state.head >= 0 ? headId(state.head) : "";
  listenToKeys(box, view.move);
  return view;
}
const still = { hoverinfo: "skip", showlegend: false };
const toolsOf = (box) => box.closest("figure").querySelector(".tools");
