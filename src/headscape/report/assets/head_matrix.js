// The matrix of heads, in tree order.

function headMatrix(box, figure) {
  const { values: z, value_label: label, bounds } = figure.data; // of cells, in tree order
  const { rows } = figure;
  const order = Array.from(figure.data.order);
  const headsIn = (cell) => order.slice(bounds[cell], bounds[cell + 1]).map((row) => rows[row]);
  const cellName = (cell) => { const inside = headsIn(cell); return inside.length > 1 ? `${inside.length} heads from ${headName(inside[0])} to ${headName(inside.at(-1))}` : headName(inside[0]); };
  let low = Infinity, high = -Infinity;
  z.forEach((row, i) => row.forEach((v, j) => { if (i !== j && !Number.isNaN(v)) { low = Math.min(low, v); high = Math.max(high, v); } }));
  if (!(low < high)) [low, high] = [Math.min(0, z[0][0]), Math.max(1, z[0][0])];
  const names = Array.from(z, (_, cell) => headShort(headsIn(cell)[0]));
  const legend = el("div", { class: "legend" });
  box.before(legend);
  const mark = () => {
    const place = order.findIndex((row) => rows[row] === state.head);
    if (place < 0) return [];
    const at = bounds.findLastIndex((start) => start <= place);
    const line = { width: 1.5, color: theme.mark };
    return [
      { type: "rect", x0: -0.5, x1: z.length - 0.5, y0: at - 0.5, y1: at + 0.5, line },
      { type: "rect", y0: -0.5, y1: z.length - 0.5, x0: at - 0.5, x1: at + 0.5, line },
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
        box.on("plotly_hover", ({ points: [p] }) => showTip(pointer.x, pointer.y, [`${cellName(p.y)} × ${cellName(p.x)}`, `${label || "value"}: ${format(p.z)}`]));
        box.on("plotly_unhover", hideTip);
        box.on("plotly_click", ({ points: [p] }) => select(headsIn(p.y)[0]));
      }
      return done;
    },
    mark() { Plotly.relayout(box, { shapes: mark() }); },
  });
}
