// Arrow keys move the selected head.

// heads by place, for the arrows: left and right change the head, up and down the layer
const places = new Map(heads.map((h, i) => [`${h[0]}|${h[1]}|${h[2]}`, i]));
const layers = [...new Map(heads.map((h) => [`${h[0]}|${h[1]}`, [h[0], h[1]]])).values()].sort((a, b) => (a[0] === b[0] ? a[1] - b[1] : 0));
function headsOf(block, layer) {
  return heads.map((h, i) => i).filter((i) => heads[i][0] === block && heads[i][1] === layer).sort((a, b) => heads[a][2] - heads[b][2]);
}
function moveInGrid(dx, dy) {
  const [block, layer, number] = heads[state.head];
  const row = layers.findIndex((l) => l[0] === block && l[1] === layer);
  if (dy) {
    const next = layers[row + dy];
    if (!next) return;
    const same = places.get(`${next[0]}|${next[1]}|${number}`);
    select(same ?? headsOf(...next).at(-1));
    return;
  }
  const line = headsOf(block, layer);
  const at = line.indexOf(state.head) + dx;
  if (at >= 0 && at < line.length) select(line[at]);
  else if (layers[row + dx]) select(headsOf(...layers[row + dx]).at(dx > 0 ? 0 : -1));
}
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
function listenToKeys(box, move) {
  box.addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(...ARROWS[event.key]);
  });
}
// After a click on anything that shows heads, the arrows go on from it, wherever the browser left the focus.
const moves = new WeakMap(); // the way the arrows move in a picture; as in the grid elsewhere
let keysFrom = null;
document.addEventListener("pointerdown", (event) => { keysFrom = event.target.closest?.("[data-keys]") ?? null; }, true);
document.addEventListener("keydown", (event) => {
  if (!keysFrom || event.defaultPrevented || !(event.key in ARROWS) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, select, textarea, dialog, canvas, .table, .text")) return;
  event.preventDefault();
  (moves.get(keysFrom) ?? moveInGrid)(...ARROWS[event.key]);
});
function alongOrder(order, rows) {
  const line = Array.from(order, (row) => rows[row]);
  return (dx, dy) => {
    const at = line.indexOf(state.head);
    const next = line[Math.max(0, Math.min(line.length - 1, (at < 0 ? 0 : at) + dx + dy))];
    select(next);
  };
}
