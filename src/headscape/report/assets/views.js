// Three linked pictures of heads: map, matrix, and the grid of layers and heads.

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
