// The map of heads, flat or solid: near points are heads that attend alike.

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
  const axes = el("select", { "aria-label": "Axes of the 2-D map", on: { change: () => { pair = axes.value.split(",").map(Number); view.paint(); } } });
  for (let a = 0; a < Math.min(n, 4); a++) for (let b = a + 1; b < Math.min(n, 4); b++) axes.append(el("option", { value: `${a},${b}`, text: `axes ${a + 1} and ${b + 1}` }));
  tools.append(axes, ...buttons);
  if (n >= 3 && !hasWebgl) caption.append(el("p", { class: "note", text: "The 3-D view needs WebGL, which is not available here; the 2-D view is shown instead." }));

  function refresh() {
    buttons[0].setAttribute("aria-pressed", String(solid));
    buttons[1].setAttribute("aria-pressed", String(!solid));
    Plotly.purge(box);
    view.paint();
  }
  // role names stand at the middle of their cluster, at the level that is coloured or else the coarsest that has names
  function names() {
    if (!treeId) return [];
    const { data: tree, rows: treeRows } = opened(treeId);
    const levels = Object.keys(tree.names || {}).map((key) => Number(key.split(":")[0]));
    const level = state.colour.startsWith("cluster:") ? Number(state.colour.slice(8)) : Math.min(...levels);
    const rowOf = new Map(rows.map((head, row) => [head, row]));
    const out = [];
    for (const [key, text] of Object.entries(tree.names || {})) {
      const [l, cluster] = key.split(":").map(Number);
      if (l !== level) continue;
      const members = treeRows.filter((_, row) => tree.labels[l][row] === cluster).map((head) => rowOf.get(head)).filter((r) => r !== undefined);
      if (members.length) out.push({ text, at: Array.from({ length: n }, (_, k) => members.reduce((s, r) => s + coordinates[r][k], 0) / members.length), size: members.length });
    }
    return out.sort((a, b) => b.size - a.size).slice(0, 8);
  }
  // labels stand off their cluster, away from the middle, so that they hide few points
  function labelNotes() {
    const middle = Array.from({ length: n }, (_, k) => Array.from(coordinates, (c) => c[k]).reduce((a, b) => a + b, 0) / rows.length);
    return names().map(({ text, at }, i) => {
      const [dx, dy] = solid ? [Math.cos(2.4 * i), Math.sin(2.4 * i)] : [at[pair[0]] - middle[pair[0]], -(at[pair[1]] - middle[pair[1]]) || 0.01];
      const size = Math.hypot(dx, dy) || 1;
      const where = solid ? { x: at[0], y: at[1], z: at[2] } : { x: at[pair[0]], y: n > 1 ? at[pair[1]] : 0 };
      return { ...where, text: plotText(text.replace(/( \([^)]*\))? \d+\/\d+ .*$/, "")), ax: (46 * dx) / size, ay: (46 * dy) / size, arrowcolor: theme.muted, arrowwidth: 1, arrowhead: 0,
        bgcolor: theme.card, opacity: 0.82, borderpad: 2, font: { size: 12, color: theme.ink } };
    });
  }
  function traces() {
    const paint = colouring(state.colour);
    const many = rows.length > 400;
    const size = solid ? (many ? 2.5 : 4) : many ? 6 : 9;
    const faded = (head) => state.cluster && !state.cluster.has(head);
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
    const automargin = rows.length <= MANY; // or all points are drawn twice
    return baseLayout({ annotations: labelNotes(), uirevision: pair.join(), xaxis: { title: { text: n ? label(pair[0]) : "" }, zeroline: false, automargin }, yaxis: { title: { text: n > 1 ? label(pair[1]) : "" }, zeroline: false, automargin }, hovermode: "closest" });
  }
  // in 3-D plotly reports the start of a rotation as a click, so there a click is a press without a move
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
