// Draw one picture after the other, the map first, so that the page is never busy for long.

const DRAW = { head_map: headMap, head_matrix: headMatrix, head_tree: headTree, head_grid: headGrid };
const drawn = []; // functions that draw again in another theme

async function draw(box) {
  const figure = opened(box.dataset.figure);
  box.replaceChildren(); // the still, if there is one
  if (figure.type === "maps") { await drawMaps(box, figure); return; }
  if (figure.type === "plot") {
    await drawPlot(box, figure);
    drawn.push(() => drawPlot(box, figure));
    return;
  }
  const view = DRAW[figure.kind](box, figure);
  await view.paint();
  view.ready = true;
  drawn.push(() => view.paint());
}

async function drawOrSay(box) {
  try {
    await draw(box);
  } catch (error) {
    box.replaceChildren(el("p", { class: "problem", text: `This figure could not be drawn: ${error.message}` }));
    console.error(error);
  }
}

// with many heads a picture is drawn when it comes near the window, is saved, or when the page is printed
const MANY = 1000;
const waiting = new Set(), begun = new Map();
function drawNow(box) { // resolves when the picture is there
  if (waiting.delete(box)) begun.set(box, drawOrSay(box));
  return begun.get(box);
}
const watcher = new IntersectionObserver((entries) => { for (const seen of entries) if (seen.isIntersecting) drawNow(seen.target); }, { rootMargin: "400px" });
function paintAll() {
  const legend = byId("legend");
  if (legend) fillLegend(legend, colouring(state.colour));
  for (const again of window.Plotly ? drawn : []) again();
  for (const view of openMaps) view.draw();
  if (state.head >= 0 && panel) showHead(state.head);
}

function useTheme(name) {
  applyTheme(name);
  paintAll();
}

async function start() {
  document.body.hidden = false; // in a notebook without scripts the still picture under it is seen
  applyTheme(themeName());
  byId("theme")?.addEventListener("click", () => {
    chosenTheme = themeName() === "dark" ? "light" : "dark";
    try { localStorage.setItem("headscape-theme", chosenTheme); } catch { /* a page from disk may have no storage */ }
    useTheme(chosenTheme);
  });
  systemDark.addEventListener("change", () => { if (!chosenTheme) useTheme(themeName()); });
  const menu = byId("colour");
  if (menu) {
    const role = columns.findIndex((c) => !c.number && c.name.startsWith("role"));
    state.colour = role >= 0 ? `column:${role}` : "layer";
    fillMenu(menu, state.colour);
    fillLegend(byId("legend"), colouring(state.colour));
    menu.addEventListener("change", () => {
      state.colour = menu.value;
      fillLegend(byId("legend"), colouring(state.colour));
      for (const view of views) if (view.ready) view.paint();
    });
  }
  buildPanel();
  buildFirst();
  headsTable();
  widenTables();
  watchPanel();
  if (heads.length) select(headOfAddress() >= 0 ? headOfAddress() : data.opening);
  chosenByReader = true;
  if (document.readyState === "loading") await new Promise((resolve) => { addEventListener("DOMContentLoaded", resolve, { once: true }); });
  if (state.head >= 0) showPlots(state.head);
  const boxes = [...document.querySelectorAll("[data-figure]")];
  for (const box of boxes) waiting.add(box);
  addSaving();
  const pause = () => new Promise((resolve) => { setTimeout(resolve, 0); });
  for (const [i, box] of boxes.entries()) {
    if (i && heads.length > MANY) { watcher.observe(box); continue; }
    await drawNow(box);
    if (!i) document.body.dataset.first = String(Math.round(performance.now()));
    await pause();
  }
  document.body.dataset.ready = String(Math.round(performance.now()));
}

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => { for (const view of views) if (view.ready && view.box.closest(".head_tree")) view.paint(); }, 150);
});
addEventListener("beforeprint", () => {
  for (const box of [...waiting]) drawNow(box);
  useTheme("light");
  for (const box of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(box, { width: Math.min(680, box.clientWidth || 680) });
});
addEventListener("afterprint", () => {
  for (const box of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(box, { width: null, autosize: true });
  useTheme(themeName());
});
start();
