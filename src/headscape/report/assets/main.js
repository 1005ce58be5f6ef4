// Start: draw one picture after the other, the map first, so that the page is never busy for long.

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

function paintAll() {
  const legend = byId("legend");
  if (legend) fillLegend(legend, colouring(state.colour));
  for (const again of drawn) again();
  for (const view of openMaps) view.draw();
  if (state.head >= 0 && panel) showHead(state.head);
}

function useTheme(name) {
  applyTheme(name);
  paintAll();
}

function headsTable() {
  const details = byId("heads-table");
  if (!details) return;
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const names = ["block", "layer", "head", ...columns.map((c) => c.name)];
    const cell = (k, i) => (k < 3 ? heads[i][k] : columns[k - 3].values[i]);
    const body = el("tbody");
    let order = heads.map((_, i) => i), last = null;
    const fill = () => body.replaceChildren(...order.map((i) => {
      const line = el("tr", { "data-head": headId(i), tabindex: "0", on: { click: () => select(i), keydown: (e) => { if (e.key === "Enter") select(i); } } });
      names.forEach((_, k) => { const v = cell(k, i); line.append(el("td", { class: typeof v === "number" ? "number" : null, text: typeof v === "number" ? format(v) : v ?? "–" })); });
      return line;
    }));
    const compare = (k) => (a, b) => { const [x, y] = [cell(k, a), cell(k, b)]; return typeof x === "number" ? (Number.isNaN(x) ? 1 : x - y) : String(x).localeCompare(String(y)); };
    const head = el("tr", {}, ...names.map((name, k) => el("th", { scope: "col" }, el("button", { type: "button", text: name, on: { click: () => {
      order = last === k ? order.reverse() : order.sort(compare(k));
      last = k;
      fill();
    } } }))));
    fill();
    details.append(el("div", { class: "table", role: "region", tabindex: "0", "aria-label": "All heads" }, el("table", {}, el("thead", {}, head), body)));
    const follow = () => body.querySelectorAll("tr").forEach((r) => r.classList.toggle("selected", r.dataset.head === headId(state.head)));
    listeners.push(follow);
    follow();
  });
}

function watchPanel() {
  const float = byId("float");
  if (!panel) return;
  let away = false, chosen = 0;
  const show = () => { float.hidden = !away || chosen < 2; }; // the first choice is the page's own
  listeners.push(() => { chosen += 1; show(); });
  new IntersectionObserver(([entry]) => { away = !entry.isIntersecting; show(); }, { threshold: 0.05 }).observe(panel);
  float.addEventListener("click", () => panel.focus({ preventScroll: true }));
}

async function start() {
  applyTheme(themeName());
  byId("theme").addEventListener("click", () => {
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
  headsTable();
  watchPanel();
  const boxes = [...document.querySelectorAll("[data-figure]")];
  const pause = () => new Promise((resolve) => { setTimeout(resolve, 0); });
  for (const [i, box] of boxes.entries()) {
    try {
      await draw(box);
    } catch (error) {
      box.replaceChildren(el("p", { class: "problem", text: `This picture could not be drawn: ${error.message}` }));
      console.error(error);
    }
    if (!i) {
      document.body.dataset.first = String(Math.round(performance.now()));
      if (heads.length) select(figures[box.dataset.figure].rows?.[0] ?? 0);
    }
    await pause();
  }
  if (!boxes.length && heads.length) select(0);
  document.body.dataset.ready = String(Math.round(performance.now()));
}

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => { for (const view of views) if (view.ready && view.box.closest(".head_tree")) view.paint(); }, 150);
});
addEventListener("beforeprint", () => {
  useTheme("light");
  for (const box of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(box, { width: Math.min(680, box.clientWidth || 680) });
});
addEventListener("afterprint", () => {
  for (const box of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(box, { width: null, autosize: true });
  useTheme(themeName());
});
start();
