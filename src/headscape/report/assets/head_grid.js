// The grid of layers and heads, coloured by any score.

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
