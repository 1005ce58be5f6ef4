// The panel of the selected head.

const panel = byId("panel");
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
    text: el("div", { id: "panel-text" }), strip: el("div", { id: "panel-strip" }),
    maps: el("div", { class: "two", id: "panel-maps" }), seen: el("div", { id: "panel-seen" }), notes: el("div"),
    pairs: el("div", { id: "panel-pairs" }), near: el("div", { id: "panel-near" }), scores: el("div", { id: "panel-scores" }),
    decay: el("div", { id: "panel-decay" }), batches: el("div", { id: "panel-batches" }),
  });
  slot.batch.addEventListener("change", () => { shownMaps.batch = Number(slot.batch.value); showMaps(state.head); });
  panel.replaceChildren(
    el("div", { class: "panel-head" }, slot.title, ...(heads.length > 1 ? [step("◀", "Previous head", -1), byLayer, byHead, step("▶", "Next head", 1)] : []),
      saveButton(() => save(slot.maps, `head-${headLink(state.head)}`), "the maps of this head")),
    el("div", { class: "chips-row" }, slot.chips, batches.length > 1 ? slot.batch : null), slot.seen, slot.text, slot.maps, slot.strip, slot.notes,
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
  slot.chips.replaceChildren(...[...words, ...clusterNames(head)].map((text) => el("span", { class: "chip", title: text, text })));
  const float = byId("float");
  float.textContent = `Show the attention of ${headName(head)}`;
  showMaps(head);
  showNear(head);
  showScores(head);
  showPlots(head);
}
function showPlots(head) {
  if (!window.Plotly) return; // it comes last, and the rest does not wait for it
  showDecay(head);
  showBatches(head);
}

function clusterNames(head) {
  if (!treeId) return [];
  const { data: tree, rows } = opened(treeId);
  const row = rows.indexOf(head);
  const named = tree.labels.map((level, l) => tree.names?.[`${l}:${level[row]}`]).filter(Boolean);
  return named.slice(-1).map((name) => `smallest named cluster of the tree: ${name}`);
}

// a way back to the panel when it is out of sight
function watchPanel() {
  const float = byId("float");
  if (!panel) return;
  let away = false, chosen = 0;
  const show = () => { float.hidden = !away || chosen < 2; }; // the first choice is the page's own
  listeners.push(() => { chosen += 1; show(); });
  new IntersectionObserver(([entry]) => { away = !entry.isIntersecting; show(); }, { threshold: 0.05 }).observe(panel);
  float.addEventListener("click", () => panel.focus({ preventScroll: true }));
}
