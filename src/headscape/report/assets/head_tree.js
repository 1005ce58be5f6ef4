// The tree of heads as an icicle plot: one row per level, one cell per head in leaf order, lines between clusters.

function headTree(box, figure) {
  const { labels, names = {} } = figure.data;
  const { rows } = figure;
  const order = Array.from(figure.data.order || rows.keys());
  const n = order.length, depth = labels.length;
  const along = labels.map((level) => order.map((row) => level[row]));
  // runs of one cluster at every level: {level, cluster, start, stop}
  const runs = along.flatMap((line, level) => {
    const found = [];
    line.forEach((cluster, x) => {
      if (x && line[x - 1] === cluster) found.at(-1).stop = x + 1;
      else found.push({ level, cluster, start: x, stop: x + 1 });
    });
    return found;
  });
  // a cluster carried on unchanged is one cluster, named where it first occurs
  const seen = new Set();
  for (const run of runs) {
    const key = `${run.start}-${run.stop}`;
    run.inherited = seen.has(key);
    seen.add(key);
  }
  box.style.height = `${Math.min(560, Math.max(240, 70 + 22 * depth))}px`;
  const counts = along.map((_, level) => runs.filter((r) => r.level === level).length);
  const runAt = (level, x) => runs.find((r) => r.level === level && r.start <= x && x < r.stop);
  const nameOf = (run) => names[`${run.level}:${run.cluster}`];
  let shown = [-0.5, n - 0.5];
  const out = el("button", { type: "button", text: "Whole tree", on: { click: () => zoom(0, n) } });
  toolsOf(box).append(out);

  // the category that more than half of the heads share, else none
  function majority(values) {
    const counts = new Map();
    for (const v of values) counts.set(v, (counts.get(v) || 0) + 1);
    const [value, count] = [...counts].reduce((a, b) => (b[1] > a[1] ? b : a));
    return 2 * count > values.length ? value : NaN;
  }
  function cells(paint) {
    return along.map((_, level) => {
      const line = new Float32Array(n).fill(NaN);
      for (const run of runs) {
        if (run.level !== level) continue;
        const inside = order.slice(run.start, run.stop).map((row) => paint.values[rows[row]]).filter((v) => v !== null && !Number.isNaN(v));
        if (!inside.length) continue;
        line.fill(paint.category ? majority(inside) : inside.reduce((a, b) => a + b, 0) / inside.length, run.start, run.stop);
      }
      return line;
    });
  }
  function borders() {
    const x = [], y = [];
    const pixels = (box.clientWidth || 600) / (shown[1] - shown[0]);
    for (const run of runs) {
      if (!run.start || (pixels * n) / counts[run.level] < 4) continue; // thinner than its border
      x.push(run.start - 0.5, run.start - 0.5, null);
      y.push(run.level - 0.5, run.level + 0.5, null);
    }
    return { x, y };
  }
  // a label where it fits: the name of a cluster, else how many heads it has
  function words() {
    const pixels = (box.clientWidth || 600) / (shown[1] - shown[0]);
    const found = [];
    for (const run of runs) {
      if (run.inherited) continue;
      const left = Math.max(run.start - 0.5, shown[0]), right = Math.min(run.stop - 0.5, shown[1]);
      if (right <= left) continue;
      const count = run.stop - run.start;
      const options = run.level === depth - 1
        ? [headShort(rows[order[run.start]])]
        : [nameOf(run), nameOf(run)?.replace(/( \([^)]*\))? \d+\/\d+ .*$/, ""), run.level ? String(count) : `${count} heads`];
      const text = options.find((t) => t && t.length * 6.6 + (t === String(count) ? 18 : 8) < (right - left) * pixels);
      if (text) found.push({ text, x: (left + right) / 2, y: run.level });
    }
    return found;
  }
  const mark = () => {
    const at = order.findIndex((row) => rows[row] === state.head);
    const shapes = at < 0 ? [] : [{ type: "rect", x0: at - 0.5, x1: at + 0.5, y0: -0.5, y1: depth - 0.5, line: { width: 1.5, color: theme.mark } }];
    if (at >= 0) shapes.push({ type: "rect", x0: at - 0.5, x1: at + 0.5, y0: depth - 1.5, y1: depth - 0.5, line: { width: 3, color: theme.mark } });
    return shapes;
  };
  function zoom(start, stop) {
    state.cluster = stop - start < n ? new Set(order.slice(start, stop).map((row) => rows[row])) : null;
    shown = [start - 0.5, stop - 0.5];
    view.paint();
    for (const other of views) if (other !== view && other.ready) other.paint();
  }
  const view = addView(box, {
    move: alongOrder(order, rows),
    paint() {
      const first = !box.layout;
      const paint = colouring(state.colour);
      box.dataset.colour = state.colour;
      out.disabled = shown[1] - shown[0] >= n;
      const labelled = words();
      // a box in the page's colour keeps the contrast of the text
      const notes = labelled.map(({ text, x, y }) => ({ x, y, text: plotText(text), showarrow: false, font: { size: 11, color: theme.ink }, bgcolor: theme.card, opacity: 0.88, borderpad: 1 }));
      const traces = [
        { type: "heatmap", z: cells(paint), colorscale: plotlyScale(paint), zmin: paint.low, zmax: paint.high, showscale: false, hoverinfo: "none", hoverongaps: true, ygap: 2 },
        { type: "scatter", mode: "lines", ...borders(), line: { color: theme.card, width: 1 }, ...still },
      ];
      const done = Plotly.react(box, traces, baseLayout({
        xaxis: { range: shown, showticklabels: false, ticks: "", showgrid: false, zeroline: false, title: { text: "heads, in tree order" } },
        yaxis: { autorange: "reversed", showgrid: false, zeroline: false, fixedrange: true, title: { text: "level" }, tickmode: "array", tickvals: [...Array(depth).keys()].filter((l) => l % Math.ceil(depth / 12) === 0) },
        annotations: notes, shapes: mark(), margin: { l: 40, r: 8, t: 4, b: 28 },
      }), config);
      if (first) {
        box.on("plotly_hover", ({ points: [p] }) => {
          if (p.curveNumber) return;
          const run = runAt(p.y, p.x);
          const head = rows[order[p.x]];
          if (run.stop - run.start === 1) showTip(pointer.x, pointer.y, describe(head));
          else showTip(pointer.x, pointer.y, [nameOf(run) || `Cluster ${run.cluster} at level ${run.level}`, `${run.stop - run.start} heads`, `under the pointer: ${headName(head)}`, "click to zoom to this cluster"]);
        });
        box.on("plotly_unhover", hideTip);
        box.on("plotly_click", ({ points: [p] }) => {
          if (p.curveNumber) return;
          const run = runAt(p.y, p.x);
          if (run.stop - run.start === 1) select(rows[order[p.x]]);
          else if (run.start - 0.5 === shown[0] && run.stop - 0.5 === shown[1]) zoom(0, n);
          else zoom(run.start, run.stop);
        });
        box.on("plotly_relayout", (change) => {
          if ("xaxis.range[0]" in change) shown = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
          else if (change["xaxis.autorange"]) shown = [-0.5, n - 0.5];
          else return;
          view.paint();
        });
      }
      return done;
    },
    mark() { Plotly.relayout(box, { shapes: mark() }); },
  });
  return view;
}
