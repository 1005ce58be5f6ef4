// The panel of the selected head: its maps, what it looks at, whom it resembles, how it compares.

const panel = byId("panel");
const shownMaps = { batch: 0, query: "mean" };
const batches = data.maps ? unpack(data.maps.batches) : [];
const imagesOf = new Map();
function pngsOf(block, head) {
  if (!imagesOf.has(block.images)) {
    const script = byId(block.images);
    if (!script) return null; // still on its way: the maps stand at the end of the file
    imagesOf.set(block.images, JSON.parse(script.textContent));
  }
  return imagesOf.get(block.images)[head];
}

const slot = {};
function buildPanel() {
  if (!panel) return;
  const byLayer = el("select", { "aria-label": "Layer", id: "pick-layer" }, ...layers.map((l, i) => el("option", { value: i, text: `${manyBlocks ? l[0] + " " : ""}layer ${l[1]}` })));
  const byHead = el("select", { "aria-label": "Head", id: "pick-head" });
  byLayer.addEventListener("change", () => select(headsOf(...layers[byLayer.value])[0]));
  byHead.addEventListener("change", () => select(Number(byHead.value)));
  const step = (text, label, dx) => el("button", { type: "button", text, "aria-label": label, on: { click: () => moveInGrid(dx, 0) } });
  Object.assign(slot, {
    byLayer, byHead,
    title: el("h3", { id: "panel-title", text: "" }), chips: el("div", { class: "chips" }),
    batch: el("select", { "aria-label": "Batch", id: "pick-batch" }, ...batches.map((b, i) => el("option", { value: i, text: `batch ${b.name}` }))),
    maps: el("div", { class: "two", id: "panel-maps" }), seen: el("div", { id: "panel-seen" }), notes: el("div"),
    pairs: el("div", { id: "panel-pairs" }), near: el("div", { id: "panel-near" }), scores: el("div", { id: "panel-scores" }),
    decay: el("div", { id: "panel-decay" }), batches: el("div", { id: "panel-batches" }),
  });
  slot.batch.addEventListener("change", () => { shownMaps.batch = Number(slot.batch.value); showMaps(state.head); });
  panel.replaceChildren(
    el("div", { class: "panel-head" }, slot.title, step("◀", "Previous head", -1), byLayer, byHead, step("▶", "Next head", 1)),
    el("div", { class: "chips-row" }, slot.chips, batches.length > 1 ? slot.batch : null), slot.seen, slot.maps, slot.notes,
    el("div", { class: "two panel-two" }, slot.pairs, slot.near),
    slot.scores, el("div", { class: "two panel-two" }, slot.decay, slot.batches),
  );
  for (const note of data.notes) slot.notes.append(el("p", { class: "note", text: note }));
  listeners.push(showHead);
}

function showHead(head) {
  panel.dataset.selected = headId(head);
  const [block, layer] = heads[head];
  slot.title.textContent = headName(head).replace(/^./, (c) => c.toUpperCase());
  slot.byLayer.value = layers.findIndex((l) => l[0] === block && l[1] === layer);
  slot.byHead.replaceChildren(...headsOf(block, layer).map((i) => el("option", { value: i, text: `head ${heads[i][2]}` })));
  slot.byHead.value = head;
  const words = columns.filter((c) => !c.number && c.values[head] !== null).map((c) => `${c.name}: ${c.values[head]}`);
  slot.chips.replaceChildren(...[...words, ...folderNames(head)].map((text) => el("span", { class: "chip", title: text, text })));
  const float = byId("float");
  float.textContent = `${headName(head)}: show its attention`;
  showMaps(head);
  showNear(head);
  showScores(head);
  showDecay(head);
  showBatches(head);
}

function folderNames(head) {
  if (!treeId) return [];
  const { data: tree, rows } = opened(treeId);
  const row = rows.indexOf(head);
  const named = tree.labels.map((level, l) => tree.names?.[`${l}:${level[row]}`]).filter(Boolean);
  return named.slice(-1).map((name) => `smallest named folder: ${name}`);
}

// ---------------------------------------------------------------- maps

let drawing = 0;
async function showMaps(head) {
  const mine = ++drawing;
  const batch = batches[shownMaps.batch];
  const block = batch?.blocks[heads[head][0]];
  const pngs = block && pngsOf(block, head);
  slot.seen.replaceChildren();
  if (!pngs) {
    slot.maps.replaceChildren();
    slot.pairs.replaceChildren();
    if (block) addEventListener("DOMContentLoaded", () => showMaps(state.head), { once: true });
    else if (!batches.length && !data.notes.length) slot.maps.append(el("p", { class: "note", text: "No attention maps were kept of this head." }));
    return;
  }
  const [first, second] = await Promise.all(pngs.map(decode));
  if (mine !== drawing) return; // another head was chosen meanwhile
  const [nQuery, nKey] = block.shape;
  const root = data.maps.kind === "probs";
  const valueIn = ([low, high]) => (g) => low + (high - low) * (root ? (g / 255) ** 2 : g / 255);
  const causal = block.mask === "causal", offset = nKey - nQuery;
  const ranges = block.ranges[head];
  const common = { what: root ? "attention" : "score", subject: headName(head), note: "" };
  const query = mapAxis(block.query_tokens, block.query.bounds), key = mapAxis(block.key_tokens, block.key.bounds);
  const models = [{
    ...common, title: "Original", alt: `Attention of ${headName(head)} in batch ${batch.name}, tokens in their own order; the strongest pairs are listed below`,
    grey: first.grey, query, key, value: valueIn(ranges[0]),
    absent: causal ? (i, j) => key.first(j) > query.members(i).at(-1) + offset : () => false,
  }];
  if (block.query.organised && block.key.organised) {
    const q = block.query.organised, k = block.key.organised;
    const oq = mapAxis(block.query_tokens, q.bounds, q.order), ok = mapAxis(block.key_tokens, k.bounds, k.order);
    let grey = second?.grey;
    if (!block.coarse) {
      grey = new Uint8Array(first.grey.length);
      for (let i = 0, p = 0; i < nQuery; i++) for (let j = 0; j < nKey; j++, p++) grey[p] = first.grey[q.order[i] * nKey + k.order[j]];
    }
    models.push({
      ...common, title: "Organised", note: "figure 1 of the paper", alt: `The same attention with queries and keys in the order of their trees`,
      grey, query: oq, key: ok, value: valueIn(ranges[block.coarse ? 1 : 0]),
      absent: causal && !block.coarse ? (i, j) => k.order[j] > q.order[i] + offset : () => false,
    });
  }
  for (const view of openMaps) if (!document.contains(view.canvas) || slot.maps.contains(view.canvas)) openMaps.delete(view);
  const made = models.map(mapFigure);
  slot.maps.replaceChildren(...made.map((m) => m.box));
  if (models.length < 2) slot.maps.append(el("p", { class: "note", text: treeId ? "No organised order is known of these tokens." : "The organised map stands here once “headscape organize” has run." }));
  made.forEach((m) => m.view.draw());
  panel.dataset.maps = headId(head);
  showPairs(block, head);
  if (batch.picture) showPicture(batch, block, head, first.grey, valueIn(ranges[0]));
}

function showPairs(block, head) {
  const list = el("ol", { class: "pairs" });
  for (const [q, k, value] of block.pairs[head] || []) {
    const what = el("span", { class: "what", title: `${block.query_tokens[q]} → ${block.key_tokens[k]}` },
      el("bdi", { text: block.query_tokens[q] }), ` (${q}) → `, el("bdi", { text: block.key_tokens[k] }), ` (${k})`);
    list.append(el("li", {}, what, el("span", { class: "num", text: format(value) })));
  }
  slot.pairs.replaceChildren(el("h4", { text: "Strongest pairs: query → key" }), list, el("p", { class: "note", text: "One pair a key; · is a blank, numbers are positions." }));
}

// ---------------------------------------------------------------- pictures

function showPicture(batch, block, head, grey, value) {
  const [rows, columnsN] = batch.picture.grid;
  const [nQuery, nKey] = block.shape;
  const extra = nKey - rows * columnsN; // [CLS] and its like come first
  if (extra < 0) return;
  const options = [["mean", "the mean over all queries"]];
  if (block.coarse) options.push(["0", `query ${block.query_tokens[0]}`]);
  else for (let q = 0; q < nQuery; q++) options.push([String(q), `query ${block.query_tokens[q]}`]);
  const menu = el("select", { id: "pick-query" }, ...options.map(([v, text]) => el("option", { value: v, text })));
  menu.value = options.some(([v]) => v === shownMaps.query) ? shownMaps.query : "mean";
  const canvas = el("canvas", { width: 448, height: 448, role: "img", id: "seen", "aria-label": `Attention of ${headName(head)} over the input image` });
  const rowOf = (which) => {
    if (block.coarse) return block.rows[head][which === "mean" ? 0 : 1];
    const at = (q) => Float32Array.from({ length: nKey }, (_, k) => value(grey[q * nKey + k]));
    if (which !== "mean") return at(Number(which));
    const total = new Float32Array(nKey);
    for (let q = 0; q < nQuery; q++) at(q).forEach((v, k) => { total[k] += v / nQuery; });
    return total;
  };
  const said = el("p", { class: "note" });
  async function draw() {
    const { image } = await decode(batch.picture.png);
    const weights = Array.from(rowOf(menu.value)).slice(extra);
    const high = Math.max(...weights), low = Math.min(0, ...weights);
    const c = canvas.getContext("2d");
    c.imageSmoothingEnabled = false;
    c.globalAlpha = 1;
    c.filter = "grayscale(1) brightness(.8)";
    c.drawImage(image, 0, 0, 448, 448);
    c.filter = "none";
    const w = 448 / columnsN, h = 448 / rows;
    weights.forEach((v, p) => {
      const share = (v - low) / (high - low || 1);
      c.globalAlpha = 0.12 + 0.62 * share;
      c.fillStyle = `rgb(${sequential[Math.round(255 * share)].join(",")})`;
      c.fillRect((p % columnsN) * w, Math.floor(p / columnsN) * h, w, h);
    });
    c.globalAlpha = 1;
    const own = Number(menu.value) - extra;
    if (menu.value !== "mean" && own >= 0) {
      c.strokeStyle = theme.mark; c.lineWidth = 5;
      c.strokeRect((own % columnsN) * w, Math.floor(own / columnsN) * h, w, h);
    }
    said.textContent = `Brightest patch: ${format(high)}. ` + (extra ? `Outside the picture (${block.key_tokens.slice(0, extra).join(", ")}): ${format(Array.from(rowOf(menu.value)).slice(0, extra).reduce((a, b) => a + b, 0))}.` : "");
    canvas.dataset.query = menu.value;
  }
  menu.addEventListener("change", () => { shownMaps.query = menu.value; draw(); });
  if (!block.coarse) {
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const x = Math.floor(((event.clientX - box.left) / box.width) * columnsN), y = Math.floor(((event.clientY - box.top) / box.height) * rows);
      menu.value = String(extra + y * columnsN + x);
      shownMaps.query = menu.value;
      draw();
    });
  }
  slot.seen.replaceChildren(el("div", { class: "seen" }, canvas, el("div", { class: "side" },
    el("label", { for: "pick-query", text: "Where it looks, for" }), menu, said,
    el("p", { class: "note", text: block.coarse ? "" : "Click a patch to see where its query looks; the outlined patch is the query." }))));
  draw();
}

// ---------------------------------------------------------------- numbers

function showNear(head) {
  const id = firstOf("head_matrix");
  slot.near.replaceChildren();
  if (!id) return;
  const { data: matrix, rows } = opened(id);
  const row = rows.indexOf(head);
  if (row < 0) return;
  const sign = matrix.distance ? 1 : -1;
  const others = [...rows.keys()].filter((r) => r !== row && !Number.isNaN(matrix.values[row][r]))
    .sort((a, b) => sign * (matrix.values[row][a] - matrix.values[row][b])).slice(0, 8);
  const list = el("ul", { class: "near" }, ...others.map((r) => el("li", {},
    el("span", { class: "what" }, el("button", { type: "button", text: headName(rows[r]), on: { click: () => select(rows[r]) } })),
    el("span", { class: "num", text: format(matrix.values[row][r]) }))));
  slot.near.append(el("h4", { text: "Nearest heads" }), others.length ? list : el("p", { class: "note", text: "There is no other head." }),
    el("p", { class: "note", text: others.length && matrix.value_label ? `By ${matrix.value_label}.` : "" }));
}

function showScores(head) {
  const items = [];
  for (const column of columns) {
    const value = column.values[head];
    if (!column.number || value === null || Number.isNaN(value)) continue;
    const known = Array.from(column.values).filter((v) => v !== null && !Number.isNaN(v));
    const below = known.filter((v) => v < value).length, same = known.filter((v) => v === value).length;
    const mark = el("i");
    mark.style.left = `${(100 * (below + (same - 1) / 2)) / Math.max(1, known.length - 1)}%`;
    items.push(el("div", { class: "score" }, el("span", { class: "name", title: `${column.name} (${column.study})`, text: column.name }),
      el("span", { class: "num", text: `${format(value)} · rank ${below + 1} of ${known.length}` }), el("div", { class: "strip", "aria-hidden": "true" }, mark)));
  }
  slot.scores.replaceChildren(...(items.length ? [el("h4", { text: "Scores, and their place among all heads (rank 1 is the lowest)" }), el("div", { class: "scores" }, ...items)] : []));
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
  if (none) traces.push(line(none[row], "shuffled", theme.c[1], "dot"));
  const sizes = traces.flatMap((t) => t.y).filter((v) => v > 0);
  const wide = Math.max(...sizes) > 30 * Math.min(...sizes);
  smallPlot(slot.decay, "Coefficient decay against the null", traces, { xaxis: { type: "log", dtick: 1 }, yaxis: { type: "log", dtick: wide ? 1 : null }, showlegend: true },
    "Size of the Haar coefficients, in order. Structure means that the head falls faster than its shuffled self.");
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
    "A flat line, inside or outside the band: the head keeps its place whatever it reads.");
  if (measures.length > 1) slot.batches.querySelector("h4").append(" ", slot.measure);
}
