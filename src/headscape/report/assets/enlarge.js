// One attention map in a dialog, to zoom and to move.

function enlarge(model) {
  hideTip();
  const dialog = byId("large");
  const view = new MapView(model, { large: true });
  const button = (text, label, act) => el("button", { type: "button", text, "aria-label": label, on: { click: act } });
  const reset = () => { view.window = [0, model.query.n, 0, model.key.n]; view.draw(false); };
  dialog.replaceChildren(
    el("div", { class: "bar" }, el("h3", { text: `${model.subject ? model.subject + ": " : ""}${model.title}` }),
      button("+", "Zoom in", () => view.zoom(1.6)), button("−", "Zoom out", () => view.zoom(1 / 1.6)), button("Whole map", "Show the whole map", reset),
      button("Close", "Close", () => dialog.close())),
    view.canvas,
    el("p", { class: "note", text: "Rows are queries, columns are keys. Zoom with the wheel or + and −, move by dragging or with the arrow keys. Zoom in to see every token." }),
  );
  view.canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = view.canvas.getBoundingClientRect();
    const { left, w, h } = view.frame;
    view.zoom(event.deltaY < 0 ? 1.25 : 0.8, [(event.clientX - box.left - left) / w, (event.clientY - box.top) / h].map((v) => Math.min(1, Math.max(0, v))));
  }, { passive: false });
  let from = null;
  view.canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; view.canvas.setPointerCapture(event.pointerId); });
  view.canvas.addEventListener("pointerup", () => { from = null; });
  view.canvas.addEventListener("pointermove", (event) => {
    if (!from) return;
    view.pan((from[0] - event.clientX) / view.frame.w, (from[1] - event.clientY) / view.frame.h);
    from = [event.clientX, event.clientY];
  });
  view.canvas.addEventListener("keydown", (event) => {
    if (event.key in ARROWS) { event.preventDefault(); view.pan(...ARROWS[event.key].map((d) => d * 0.2)); }
    if (event.key === "+" || event.key === "=") view.zoom(1.6);
    if (event.key === "-") view.zoom(1 / 1.6);
    if (event.key === "0") reset();
  });
  if (!dialog.open) dialog.showModal();
  dialog.append(tip); // above the backdrop
  dialog.onclose = () => { document.body.append(tip); hideTip(); };
  view.draw();
  view.canvas.focus();
}
