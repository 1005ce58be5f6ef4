// In the panel: the nearest heads, all scores, the decay of the coefficients, and the scores by batch.

function showNear(head) {
  const id = firstOf("head_matrix");
  slot.near.replaceChildren();
  if (!id) return;
  const { data: matrix, rows } = opened(id);
  const row = rows.indexOf(head);
  if (row < 0) return;
  const others = [...matrix.near[row].keys()].filter((k) => matrix.near[row][k] >= 0);
  const list = el("ul", { class: "near" }, ...others.map((k) => [rows[matrix.near[row][k]], matrix.near_values[row][k]]).map(([other, value]) => el("li", {},
    el("span", { class: "what" }, el("button", { type: "button", text: headName(other), on: { click: () => select(other) } })),
    el("span", { class: "num", text: format(value) }))));
  slot.near.append(el("h4", { text: "Nearest heads" }), others.length ? list : el("p", { class: "note", text: "There are no other heads." }),
    el("p", { class: "note", text: others.length && matrix.value_label ? `Ranked by ${matrix.value_label}.` : "" }));
}

const explained = columns.filter((column) => column.number && column.about);
const meanings = explained.length ? el("details", { class: "meanings" }, el("summary", { text: "What these scores mean" }),
  el("dl", {}, ...explained.flatMap((column) => [el("dt", { text: column.name }), el("dd", { text: column.about })]))) : "";

function showScores(head) {
  const items = [];
  for (const column of columns) {
    const value = column.values[head];
    if (!column.number || value === null || Number.isNaN(value)) continue;
    const known = Array.from(column.values).filter((v) => v !== null && !Number.isNaN(v));
    const below = known.filter((v) => v < value).length, same = known.filter((v) => v === value).length;
    const mark = el("i");
    mark.style.left = `${(100 * (below + (same - 1) / 2)) / Math.max(1, known.length - 1)}%`;
    items.push(el("div", { class: "score" }, el("span", { class: "name", title: column.about || `${column.name} (${column.study})`, text: column.name }),
      el("span", { class: "num", text: `${format(value)} · rank ${below + 1} of ${known.length}` }), el("div", { class: "strip", "aria-hidden": "true" }, mark)));
  }
  slot.scores.replaceChildren(...(items.length ? [el("h4", { text: "Scores, with rank among all heads (1 is the lowest)" }), el("div", { class: "scores" }, ...items), meanings] : []));
}

function mapFigureData(key) {
  for (const id of Object.keys(figures)) {
    if (figures[id].type === "linked" && opened(id).data[key]) return opened(id);
  }
  return null;
}
function smallPlot(place, title, traces, layout, note) {
  let box = place.querySelector(".small");
  if (!box) {
    box = el("div", { class: "small", role: "img", "aria-label": title });
    place.replaceChildren(el("h4", { text: title }), box, el("p", { class: "note", text: note }));
  }
  Plotly.react(box, traces, baseLayout(merge({ margin: { l: 46, r: 6, t: 4, b: 34 }, legend: { x: -0.1, y: 1.02, yanchor: "bottom", font: { size: 11 }, entrywidth: 84 } }, layout)), configStill);
}

function showDecay(head) {
  const figure = mapFigureData("decay");
  const row = figure ? figure.rows.indexOf(head) : -1;
  if (row < 0) { slot.decay.replaceChildren(); return; }
  const { x, heads: curves, null: none } = figure.data.decay;
  const line = (y, name, color, dash) => ({ type: "scatter", mode: "lines", x, y: Array.from(y, Math.abs), name, line: { color, width: 2, dash }, hovertemplate: "%{y:.3g}<extra></extra>" });
  const traces = [line(curves[row], "this head", theme.c[0], "solid")];
  if (none) traces.push(line(none[row], "rows shuffled", theme.c[1], "dot"));
  const sizes = traces.flatMap((t) => t.y).filter((v) => v > 0);
  const wide = Math.max(...sizes) > 30 * Math.min(...sizes);
  smallPlot(slot.decay, "Decay of the Haar coefficients", traces, { xaxis: { type: "log", dtick: 1 }, yaxis: { type: "log", dtick: wide ? 1 : null }, showlegend: true },
    "Haar coefficients by decreasing magnitude. A curve that falls faster than that of the shuffled rows shows structure.");
}

function showBatches(head) {
  const figure = mapFigureData("by_batch");
  const row = figure ? figure.rows.indexOf(head) : -1;
  if (row < 0) { slot.batches.replaceChildren(); return; }
  const measures = figure.data.by_batch;
  if (!slot.measure) {
    slot.measure = el("select", { "aria-label": "Score by batch", id: "pick-measure" }, ...measures.map((m, i) => el("option", { value: i, text: m.name })));
    slot.measure.addEventListener("change", () => showBatches(state.head));
  }
  const { values } = measures[Number(slot.measure.value) || 0];
  const x = values.map((_, i) => i);
  const at = (list, q) => { const s = Array.from(list).filter((v) => !Number.isNaN(v)).sort((a, b) => a - b); return s[Math.round(q * (s.length - 1))]; };
  const band = { type: "scatter", mode: "lines", x: [...x, ...[...x].reverse()], y: [...values.map((v) => at(v, 0.9)), ...values.map((v) => at(v, 0.1)).reverse()], fill: "toself", fillcolor: theme.line, line: { width: 0 }, name: "80 % of heads", hoverinfo: "skip" };
  const own = { type: "scatter", mode: "lines+markers", x, y: values.map((v) => v[row]), name: "this head", line: { color: theme.c[0], width: 2 }, marker: { size: 7, color: theme.c[0] }, hovertemplate: "batch %{x}: %{y:.4g}<extra></extra>" };
  smallPlot(slot.batches, measures.length > 1 ? "By batch" : `${measures[0].name} by batch`, [band, own], { xaxis: { dtick: Math.ceil(x.length / 10), title: { text: "batch" }, range: [-0.3, x.length - 0.7] }, yaxis: { nticks: 4 }, showlegend: true },
    "A flat line means that the head scores the same on every input; the band holds the middle 80 % of heads.");
  if (measures.length > 1) slot.batches.querySelector("h4").append(" ", slot.measure);
}
