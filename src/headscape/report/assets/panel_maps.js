// In the panel: the attention of the selected head, as it is and organized, and its strongest pairs.

const shownMaps = { batch: 0, query: "mean" };
const batches = data.maps ? unpack(data.maps.batches) : [];
const imagesOf = new Map();
function pngsOf(block, head) {
  if (!imagesOf.has(block.images)) {
    const script = byId(block.images);
    if (!script) return null;
    imagesOf.set(block.images, JSON.parse(script.textContent));
  }
  return imagesOf.get(block.images)[head];
}

let drawing = 0;
async function showMaps(head) {
  const mine = ++drawing;
  const batch = batches[shownMaps.batch];
  const block = batch?.blocks[heads[head][0]];
  const pngs = block && pngsOf(block, head);
  slot.seen.replaceChildren();
  if (!pngs) {
    for (const place of ["maps", "pairs", "text", "strip"]) slot[place].replaceChildren();
    if (!batches.length && !data.notes.length) slot.maps.append(el("p", { class: "note", text: "No attention maps were kept for this head." }));
    return;
  }
  const [first, second] = await Promise.all(pngs.map(decode));
  if (mine !== drawing) return; // another head was chosen meanwhile
  const [nQuery, nKey] = block.shape;
  const root = data.maps.kind === "probs";
  const valueIn = ([low, high]) => (g) => low + (high - low) * (root ? (g / 255) ** 2 : g / 255);
  const causal = block.mask === "causal", offset = nKey - nQuery;
  const { ranges } = block.heads[head];
  const common = { what: root ? "attention" : "score", subject: headName(head), note: "" };
  const query = mapAxis(block.query_tokens, block.query.bounds), key = mapAxis(block.key_tokens, block.key.bounds);
  const models = [{
    ...common, title: "Original", alt: `Attention of ${headName(head)} in batch ${batch.name}, tokens in reading order; the strongest pairs are listed below`,
    grey: first.grey, query, key, value: valueIn(ranges[0]),
    absent: causal ? (i, j) => key.first(j) > query.members(i).at(-1) + offset : () => false,
  }];
  if (block.query.organized && block.key.organized) {
    const q = block.query.organized, k = block.key.organized;
    const oq = mapAxis(block.query_tokens, q.bounds, q.order), ok = mapAxis(block.key_tokens, k.bounds, k.order);
    let grey = second?.grey;
    if (!block.coarse) {
      grey = new Uint8Array(first.grey.length);
      for (let i = 0, p = 0; i < nQuery; i++) for (let j = 0; j < nKey; j++, p++) grey[p] = first.grey[q.order[i] * nKey + k.order[j]];
    }
    models.push({
      ...common, title: "Organized", note: "figure 1 of Fasina et al. 2025", alt: `The same attention with queries and keys in the order of their trees`,
      grey, query: oq, key: ok, value: valueIn(ranges[block.coarse ? 1 : 0]),
      absent: causal && !block.coarse ? (i, j) => k.order[j] > q.order[i] + offset : () => false,
    });
  }
  for (const view of openMaps) if (!document.contains(view.canvas) || slot.maps.contains(view.canvas)) openMaps.delete(view);
  const made = models.map(mapFigure);
  slot.maps.replaceChildren(...made.map((m) => m.box));
  if (models.length < 2) slot.maps.append(el("p", { class: "note", text: treeId ? "The organized order of these tokens is not known." : "Run “headscape organize” to see the organized map here." }));
  made.forEach((m) => m.view.draw());
  panel.dataset.maps = headId(head);
  if (!document.body.dataset.usable) document.body.dataset.usable = String(Math.round(performance.now()));
  showPairs(block, head);
  if (batch.picture) showPicture(batch, block, head, first.grey, valueIn(ranges[0]));
  else showText(block, head, first.grey, valueIn(ranges[0]));
  showStrip(head);
}

function showPairs(block, head) {
  const list = el("ol", { class: "pairs" });
  for (const [q, k, value] of block.heads[head].pairs) {
    const what = el("span", { class: "what", title: `${block.query_tokens[q]} → ${block.key_tokens[k]}` },
      el("bdi", { text: block.query_tokens[q] }), ` (${q}) → `, el("bdi", { text: block.key_tokens[k] }), ` (${k})`);
    list.append(el("li", {}, what, el("span", { class: "num", text: format(value) })));
  }
  slot.pairs.replaceChildren(el("h4", { text: "Strongest pairs: query → key" }), list, el("p", { class: "note", text: "One pair per key. · marks a space; numbers are token positions." }));
}
