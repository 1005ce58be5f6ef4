// The matrix of heads, in tree order.

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
