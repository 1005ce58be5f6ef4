// One head is selected in all pictures of heads at once.

const state = { head: -1, colour: "layer", cluster: null };
const views = []; // {box, mark(head), paint(), move(dx, dy)}: every picture of heads
const listeners = []; // called with the selected head

function select(head) {
  if (head < 0 || head >= heads.length || head === state.head) return;
  state.head = head;
  document.body.dataset.head = headId(head);
  for (const view of views) {
    if (view.ready) view.mark(head);
    view.box.dataset.selected = headId(head);
  }
  for (const listener of listeners) listener(head);
  byId("live").textContent = `${headName(head)} selected`;
}

function addView(box, view) {
  view.box = box;
  views.push(view);
  view.ready = false;
  box.dataset.selected = state.head >= 0 ? headId(state.head) : "";
  listenToKeys(box, view.move);
  box.dataset.keys = "";
  moves.set(box, view.move);
  box.addEventListener("pointerdown", () => box.focus({ preventScroll: true }), true); // so that arrow keys go on from a click
  return view;
}
const still = { hoverinfo: "skip", showlegend: false };
const toolsOf = (box) => box.closest("figure").querySelector(".tools");
