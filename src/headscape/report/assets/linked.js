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

// ---------------------------------------------------------------- head map

const webgl = (() => {
  try { return document.createElement("canvas").getContext("webgl"); } catch { return null; }
})();
const hasWebgl = Boolean(webgl);
// drawn without a graphics card, 3-D is there but slow, and not what to start with
const quickWebgl = (() => {
  const names = webgl?.getExtension("WEBGL_debug_renderer_info");
  const name = names ? webgl.getParameter(names.UNMASKED_RENDERER_WEBGL) : "";
  webgl?.getExtension("WEBGL_lose_context")?.loseContext();
  return hasWebgl && !/swiftshader|llvmpipe|software|basic render/i.test(name);
})();

function headMap(box, figure) {
  const { rows } = figure;
  const n = figure.data.coordinates[0].length;
  const coordinates = Array.from(figure.data.coordinates, (c) => (n ? c : [0])); // a single head has none
  const canTurn = n >= 3 && hasWebgl;
  let solid = canTurn && quickWebgl && innerWidth >= 700;
  let pair = [0, n > 1 ? 1 : 0];
  const tools = toolsOf(box);
  const caption = box.closest("figure").querySelector("figcaption");
  const buttons = [true, false].map((three) => el("button", {
    type: "button", text: three ? "3-D" : "2-D", "aria-pressed": String(three === solid), "data-view": three ? "3d" : "2d",
    on: { click: () => { solid = three; refresh(); } },
  }));
  buttons[0].disabled = !canTurn;
  const axes = el("select", { "aria-label": "Axes of the flat map", on: { change: () => { pair = axes.value.split(",").map(Number); view.paint(); } } });
  for (let a = 0; a < Math.min(n, 4); a++) for (let b = a + 1; b < Math.min(n, 4); b++) axes.append(el("option", { value: `${a},${b}`, text: `axes ${a + 1} and ${b + 1}` }));
  tools.append(axes, ...buttons);
  if (n >= 3 && !hasWebgl) caption.append(el("p", { class: "note", text: "The 3-D view needs WebGL, which this browser does not offer here; the flat view is shown." }));

  function refresh() {
    buttons[0].setAttribute("aria-pressed", String(solid));
    buttons[1].setAttribute("aria-pressed", String(!solid));
    Plotly.purge(box);
    view.paint();
  }
  // role names stand at the middle of their folder, at the level that is coloured or else the coarsest that has names
  function names() {
    if (!treeId) return [];
    const { data: tree, rows: treeRows } = opened(treeId);
    const levels = Object.keys(tree.names || {}).map((key) => Number(key.split(":")[0]));
    const level = state.colour.startsWith("folder:") ? Number(state.colour.slice(7)) : Math.min(...levels);
    const rowOf = new Map(rows.map((head, row) => [head, row]));
    const out = [];
    for (const [key, text] of Object.entries(tree.names || {})) {
      const [l, folder] = key.split(":").map(Number);
      if (l !== level) continue;
      const members = treeRows.filter((_, row) => tree.labels[l][row] === folder).map((head) => rowOf.get(head)).filter((r) => r !== undefined);
      if (members.length) out.push({ text, at: Array.from({ length: n }, (_, k) => members.reduce((s, r) => s + coordinates[r][k], 0) / members.length), size: members.length });
    }
    return out.sort((a, b) => b.size - a.size).slice(0, 8);
  }
  // labels stand off their folder, away from the middle, so that they hide few points
  function labelNotes() {
    const middle = Array.from({ length: n }, (_, k) => Array.from(coordinates, (c) => c[k]).reduce((a, b) => a + b, 0) / rows.length);
    return names().map(({ text, at }, i) => {
      const [dx, dy] = solid ? [Math.cos(2.4 * i), Math.sin(2.4 * i)] : [at[pair[0]] - middle[pair[0]], -(at[pair[1]] - middle[pair[1]]) || 0.01];
      const size = Math.hypot(dx, dy) || 1;
      const where = solid ? { x: at[0], y: at[1], z: at[2] } : { x: at[pair[0]], y: n > 1 ? at[pair[1]] : 0 };
      return { ...where, text: plotText(text.replace(/ *\(.*\)$/, "")), ax: (46 * dx) / size, ay: (46 * dy) / size, arrowcolor: theme.muted, arrowwidth: 1, arrowhead: 0,
        bgcolor: theme.card, opacity: 0.82, borderpad: 2, font: { size: 12, color: theme.ink } };
    });
  }
  function traces() {
    const paint = colouring(state.colour);
    const many = rows.length > 400;
    const size = solid ? (many ? 2.5 : 4) : many ? 6 : 9;
    const faded = (head) => state.folder && !state.folder.has(head);
    const colours = rows.map((head) => (faded(head) ? theme.line : cssColour(paint, paint.values[head])));
    const symbols = rows.map((head) => (paint.category ? data.palette.markers[(paint.values[head] || 0) % data.palette.markers.length] : "circle"));
    const xyz = (list) => (solid
      ? { type: "scatter3d", x: list.map((p) => p[0]), y: list.map((p) => p[1]), z: list.map((p) => p[2]) }
      : { type: "scatter", x: list.map((p) => p[pair[0]]), y: n > 1 ? list.map((p) => p[pair[1]]) : list.map(() => 0) });
    const at = rows.indexOf(state.head);
    return [
      { ...xyz(Array.from(coordinates)), mode: "markers", hoverinfo: "none", showlegend: false,
        marker: { size, color: colours, symbol: symbols, opacity: 1, line: { width: solid ? 0 : 0.7, color: solid ? theme.muted : theme.card } } },
      { ...xyz(at < 0 ? [] : [coordinates[at]]), ...still, mode: "markers",
        marker: { size: size + (solid ? 7 : 9), color: solid ? theme.mark : "rgba(0,0,0,0)", symbol: solid ? "circle-open" : "circle", line: { width: 3, color: theme.mark } } },
    ];
  }
  function layout() {
    const own = [figure.data.x_label, figure.data.y_label];
    const label = (k) => plotText(own[k] || `coordinate ${k + 1}`);
    if (solid) {
      const axis = (k) => ({ title: { text: `${k + 1}`, font: { size: 12 } }, gridcolor: theme.line, zerolinecolor: theme.line, tickfont: { size: 9, color: theme.muted }, showbackground: false, nticks: 5, showspikes: false });
      return baseLayout({ margin: { l: 0, r: 0, t: 0, b: 0 }, uirevision: "3d", scene: { uirevision: "3d", annotations: labelNotes(), xaxis: axis(0), yaxis: axis(1), zaxis: axis(2), aspectmode: "cube", dragmode: "orbit", camera: { eye: { x: 1.35, y: 1.35, z: 0.75 } } } });
    }
    return baseLayout({ annotations: labelNotes(), uirevision: pair.join(), xaxis: { title: { text: n ? label(pair[0]) : "" }, zeroline: false }, yaxis: { title: { text: n > 1 ? label(pair[1]) : "" }, zeroline: false }, hovermode: "closest" });
  }
  // plotly takes the start of a turn for a click in 3-D, so there a click is a press without a move
  let hovered = -1, pressed = null;
  box.addEventListener("pointerdown", () => { pressed = { ...pointer }; }, true);
  addEventListener("pointerup", () => {
    if (solid && pressed && hovered >= 0 && Math.hypot(pointer.x - pressed.x, pointer.y - pressed.y) < 4) select(hovered);
    pressed = null;
  }, true);
  const view = addView(box, {
    move: moveInGrid,
    paint() {
      axes.hidden = solid || axes.options.length < 2;
      box.dataset.view = solid ? "3d" : "2d";
      box.dataset.colour = state.colour;
      const first = !box.on || !box.layout;
      const done = Plotly.react(box, traces(), layout(), solid ? config3d : config);
      if (first) {
        box.on("plotly_hover", (event) => {
          const point = event.points[0];
          if (point.curveNumber !== 0) return;
          hovered = rows[point.pointNumber];
          showTip(pointer.x, pointer.y, describe(hovered));
        });
        box.on("plotly_unhover", () => { hovered = -1; hideTip(); });
        box.on("plotly_click", (event) => { if (!solid && event.points[0].curveNumber === 0) select(rows[event.points[0].pointNumber]); });
      }
      return done;
    },
    mark() { Plotly.react(box, traces(), layout(), solid ? config3d : config); },
  });
  return view;
}

// ---------------------------------------------------------------- head matrix

function sparseTicks(list, most = 14) {
  const step = Math.max(1, Math.ceil(list.length / most));
  const at = [...list.keys()].filter((i) => i % step === 0);
  return { tickmode: "array", tickvals: at, ticktext: at.map((i) => plotText(list[i])) };
}

function headMatrix(box, figure) {
  const { values, value_label: label } = figure.data;
  const { rows } = figure;
  const order = Array.from(figure.data.order || rows.keys());
  const z = order.map((i) => Float32Array.from(order, (j) => values[i][j]));
  let low = Infinity, high = -Infinity;
  z.forEach((row, i) => row.forEach((v, j) => { if (i !== j && !Number.isNaN(v)) { low = Math.min(low, v); high = Math.max(high, v); } }));
  if (!(low < high)) [low, high] = [Math.min(0, z[0][0]), Math.max(1, z[0][0])];
  const names = order.map((row) => headShort(rows[row]));
  const legend = el("div", { class: "legend" });
  box.before(legend);
  const mark = () => {
    const at = order.findIndex((row) => rows[row] === state.head);
    if (at < 0) return [];
    const line = { width: 1.5, color: theme.mark };
    return [
      { type: "rect", x0: -0.5, x1: order.length - 0.5, y0: at - 0.5, y1: at + 0.5, line },
      { type: "rect", y0: -0.5, y1: order.length - 0.5, x0: at - 0.5, x1: at + 0.5, line },
    ];
  };
  return addView(box, {
    move: alongOrder(order, rows),
    paint() {
      const first = !box.layout;
      const trace = { type: "heatmap", z, colorscale: scale(data.palette.sequential), zmin: low, zmax: high, hoverinfo: "none", showscale: false };
      fillLegend(legend, { category: false, low, high });
      if (label) legend.prepend(el("span", { text: label }));
      const axis = { ...sparseTicks(names), showgrid: false, zeroline: false, title: { text: "head, in tree order" } };
      const done = Plotly.react(box, [trace], baseLayout({ xaxis: { ...axis, tickangle: -60, constrain: "domain" }, yaxis: { ...axis, title: { text: "" }, autorange: "reversed", scaleanchor: "x", constrain: "domain" }, shapes: mark(), margin: { l: 50, r: 4, t: 4, b: 50 } }), config);
      if (first) {
        box.on("plotly_hover", ({ points: [p] }) => showTip(pointer.x, pointer.y, [`${headName(rows[order[p.y]])} × ${headName(rows[order[p.x]])}`, `${label || "value"}: ${format(p.z)}`]));
        box.on("plotly_unhover", hideTip);
        box.on("plotly_click", ({ points: [p] }) => select(rows[order[p.y]]));
      }
      return done;
    },
    mark() { Plotly.relayout(box, { shapes: mark() }); },
  });
}

// ---------------------------------------------------------------- layer x head grid

function headGrid(box, figure) {
  const rows = new Set(figure.rows);
  const mine = layers.filter((l) => heads.some((h, i) => rows.has(i) && h[0] === l[0] && h[1] === l[1]));
  const width = 1 + Math.max(...figure.rows.map((i) => heads[i][2]));
  const at = (line, x) => { const head = places.get(`${line[0]}|${line[1]}|${x}`); return rows.has(head) ? head : undefined; };
  const score = columns.findIndex((c) => c.name === figure.data.score || c.name.startsWith(`${figure.data.score} (`));
  const menu = el("select", { "aria-label": "Score shown in the grid", on: { change: () => view.paint() } });
  fillMenu(menu, score < 0 ? state.colour : `column:${score}`);
  const legend = el("div", { class: "legend" });
  toolsOf(box).append(menu);
  box.before(legend);
  const names = mine.map((l) => (manyBlocks ? `${l[0]} ${l[1]}` : String(l[1])));
  const mark = () => {
    if (state.head < 0) return [];
    const y = mine.findIndex((l) => l[0] === heads[state.head][0] && l[1] === heads[state.head][1]);
    const x = heads[state.head][2];
    return y < 0 ? [] : [{ type: "rect", x0: x - 0.5, x1: x + 0.5, y0: y - 0.5, y1: y + 0.5, line: { width: 3, color: theme.mark } }];
  };
  const view = addView(box, {
    move: moveInGrid,
    paint() {
      const first = !box.layout;
      const paint = colouring(menu.value);
      box.dataset.colour = menu.value;
      fillLegend(legend, paint);
      const z = mine.map((line) => Float32Array.from({ length: width }, (_, x) => { const head = at(line, x); return head === undefined ? NaN : paint.values[head]; }));
      const trace = { type: "heatmap", z, colorscale: plotlyScale(paint), zmin: paint.low, zmax: paint.high, showscale: false, hoverinfo: "none", hoverongaps: false, xgap: width * mine.length > 400 ? 0.5 : 1, ygap: mine.length > 40 ? 0.5 : 1 };
      const done = Plotly.react(box, [trace], baseLayout({
        xaxis: { ...sparseTicks([...Array(width).keys()].map(String), 16), title: { text: "head" }, showgrid: false, zeroline: false },
        yaxis: { ...sparseTicks(names, 16), title: { text: "layer" }, showgrid: false, zeroline: false, autorange: "reversed" },
        shapes: mark(), margin: { l: 46, r: 4, t: 4, b: 40 },
      }), config);
      if (first) {
        box.on("plotly_hover", ({ points: [p] }) => { const head = at(mine[p.y], p.x); if (head !== undefined) showTip(pointer.x, pointer.y, [headName(head), `${colouring(menu.value).title}: ${colouring(menu.value).text(head)}`]); });
        box.on("plotly_unhover", hideTip);
        box.on("plotly_click", ({ points: [p] }) => { const head = at(mine[p.y], p.x); if (head !== undefined) select(head); });
      }
      return done;
    },
    mark() { Plotly.relayout(box, { shapes: mark() }); },
  });
  return view;
}
