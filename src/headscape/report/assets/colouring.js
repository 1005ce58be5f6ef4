// One colouring holds in all pictures of heads: by layer, role, cluster or any score.

// the cluster (the paper calls it a folder) of every head at a level of the first tree, -1 for heads outside it
function clustersAt(level) {
  const { data: tree, rows } = opened(treeId);
  const labels = new Array(heads.length).fill(-1);
  rows.forEach((head, row) => { labels[head] = tree.labels[level][row]; });
  const name = (cluster) => tree.names?.[`${level}:${cluster}`] || `cluster ${cluster}`;
  return { labels, name, count: 1 + labels.reduce((a, b) => Math.max(a, b), 0) };
}

function choices() {
  const groups = [["Position", [["layer", "layer"]]]];
  if (manyBlocks) groups[0][1].push(["block", "block"]);
  const words = [], numbers = [];
  columns.forEach((column, i) => (column.number ? numbers : words).push([`column:${i}`, column.name]));
  if (words.length) groups.push(["Role", words]);
  if (treeId) {
    const levels = opened(treeId).data.labels;
    const clusters = [];
    for (let l = 1; l < levels.length - 1; l++) clusters.push([`cluster:${l}`, `cluster, level ${l} (${clustersAt(l).count} clusters)`]);
    if (clusters.length) groups.push(["Cluster of the head tree", clusters]);
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
  const clip = sorted.length >= 50; // else a few extreme heads would use up all the colours
  let [low, high] = sorted.length ? [at(clip ? 0.02 : 0), at(clip ? 0.98 : 1)] : [0, 1];
  if (low === high) [low, high] = [sorted[0], sorted[sorted.length - 1]];
  const below = sorted.length && sorted[0] < low, above = sorted.length && sorted[sorted.length - 1] > high;
  const flat = low === high, signed = low < 0 && high > 0; // signed values have 0 in the middle of two colours
  if (flat) high = low + 1;
  if (signed) { const reach = Math.max(-low, high); low = -reach; high = reach; }
  return { title, category: false, flat, signed, values: Array.from(values, (v) => (v === null ? NaN : v)), low, high, below, above, text };
}

function colouring(name) {
  const [kind, which] = name.split(":");
  if (kind === "block") return byCategory(heads.map((h) => h[0]), "block");
  if (kind === "column") {
    const column = columns[which];
    const order = column.name.startsWith("role") ? (word) => data.roles.indexOf(word) : null;
    return column.number ? byNumber(column.values, column.name) : byCategory(column.values, column.name, order);
  }
  if (kind === "cluster") {
    const { labels, name: named, count } = clustersAt(Number(which));
    const words = labels.map((label) => (label < 0 ? null : named(label)));
    if (count <= theme.c.length) {
      const distinct = new Set(words.filter(Boolean)).size === count; // two clusters may have the same name
      const unique = distinct ? words : words.map((w, i) => (w === null ? null : `${w} (${labels[i]})`));
      return byCategory(unique, `cluster at level ${which}`, (word) => labels[unique.indexOf(word)]);
    }
    return byNumber(labels.map((label) => (label < 0 ? NaN : label)), `cluster in tree order, level ${which}`, (i) => words[i] ?? "–");
  }
  return byNumber(heads.map((h) => h[1]), "layer");
}

// heads without a role are grey
const hue = (paint, i) => (paint.labels[i] === "mixed" ? theme.c.at(-1) : theme.c[i % theme.c.length]);
function cssColour(paint, value) {
  if (value === null || Number.isNaN(value)) return theme.line;
  if (paint.category) return hue(paint, value);
  const share = Math.min(1, Math.max(0, (value - paint.low) / (paint.high - paint.low)));
  return `rgb(${(paint.signed ? diverging : sequential)[Math.round(255 * share)].join(",")})`;
}
function plotlyScale(paint) {
  if (!paint.category) return scale(paint.signed ? data.palette.diverging : data.palette.sequential);
  const n = paint.labels.length;
  return paint.labels.flatMap((_, i) => [[i / n, hue(paint, i)], [(i + 1) / n, hue(paint, i)]]);
}

const GLYPHS = ["●", "■", "◆", "✚", "✖", "○", "□", "◇"]; // the markers of the flat map, in their order
function fillLegend(box, paint) {
  box.replaceChildren();
  if (paint.category) {
    paint.labels.forEach((label, i) => {
      const swatch = el("b", { class: "swatch", "aria-hidden": "true", text: GLYPHS[i % GLYPHS.length] });
      swatch.style.color = hue(paint, i);
      box.append(el("span", { title: label }, swatch, label));
    });
    return;
  }
  if (paint.flat) { box.append(el("span", { text: `all heads: ${format(paint.low)}` })); return; }
  const bar = el("i", { class: "ramp", role: "img", "aria-label": "color scale from low to high" });
  bar.style.background = `linear-gradient(90deg, ${(paint.signed ? data.palette.diverging : data.palette.sequential).join(",")})`;
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
