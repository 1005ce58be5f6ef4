// Tables. That of all heads is sortable, and the text alternative to the pictures.

function headsTable() {
  const details = byId("heads-table");
  if (!details) return;
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const fixed = manyBlocks ? 3 : 2; // block, layer and head stay in sight
    const shown = [...columns.filter((c) => !c.number), ...columns.filter((c) => c.number)]; // the role before its scores
    const names = [...["block", "layer", "head"].slice(3 - fixed), ...shown.map((c) => c.name)];
    const cell = (k, i) => (k < fixed ? heads[i][k + 3 - fixed] : shown[k - fixed].values[i]);
    const body = el("tbody");
    let order = heads.map((_, i) => i), last = null, down = false;
    const fill = () => body.replaceChildren(...order.map((i) => {
      const line = el("tr", { "data-head": headId(i), "data-i": i, tabindex: "0", on: { click: () => select(i), keydown: (e) => { if (e.key === "Enter") select(i); } } });
      names.forEach((_, k) => { const v = cell(k, i); line.append(el("td", { class: typeof v === "number" ? "number" : null, text: typeof v === "number" ? format(v) : v ?? "–" })); });
      return line;
    }));
    const compare = (k) => (a, b) => { const [x, y] = [cell(k, a), cell(k, b)]; return typeof x === "number" ? x - y : String(x).localeCompare(String(y)); };
    const head = el("tr", {}, ...names.map((name, k) => el("th", { scope: "col", class: typeof cell(k, 0) === "number" ? "number" : null }, el("button", { type: "button", text: name, on: { click: () => {
      down = last === k ? !down : typeof cell(k, 0) === "number"; // numbers: the highest first
      last = k;
      const known = order.filter((i) => !Number.isNaN(cell(k, i))).sort(compare(k));
      order = [...(down ? known.reverse() : known), ...order.filter((i) => Number.isNaN(cell(k, i)))];
      [...head.children].forEach((th, n) => th.setAttribute("aria-sort", n !== k ? "none" : down ? "descending" : "ascending"));
      fill();
      applyFilter();
    } } }))));
    fill();
    details.append(el("div", { class: "table", role: "region", tabindex: "0", "aria-label": "All heads", "data-fixed": fixed, "data-keys": "" }, el("table", {}, el("thead", {}, head), body)));
    const follow = () => body.querySelectorAll("tr").forEach((r) => r.classList.toggle("selected", r.dataset.head === headId(state.head)));
    listeners.push(follow);
    follow();
  });
}

// a table too wide for half of the page takes all of it
function widenTables() {
  for (const box of document.querySelectorAll(".table-card .table")) {
    box.closest(".table-card").classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
  }
}
