// The first screen: the grid of layers and heads, search, roles to filter by, and the address that follows the head.

const grid = byId("grid");
const cellOf = new Map([...(grid?.querySelectorAll("[data-i]") ?? [])].map((cell) => [Number(cell.dataset.i), cell]));
const roleColumn = columns.find((c) => !c.number && c.name.startsWith("role"));
const headLink = (i) => (manyBlocks ? headId(i) : `${heads[i][1]}.${heads[i][2]}`);
const linked = new Map(heads.map((_, i) => [headLink(i), i]));
heads.forEach((h, i) => { if (!linked.has(headId(i))) linked.set(headId(i), i); });

const pointed = (text) => text.replace(/^L(\d+)H(\d+)$/i, "$1.$2"); // "L18H6" is 18.6

// "#18.6", "#decoder.18.6" or "#L18H6"; -1 for the address of something else
function headOfAddress() {
  let name = "";
  try { name = pointed(decodeURIComponent(location.hash.slice(1))); } catch { return -1; }
  return linked.get(name) ?? heads.findIndex((h) => `${h[1]}.${h[2]}` === name);
}

function buildFirst() {
  if (!grid) return;
  listenToKeys(grid, moveInGrid);
  grid.addEventListener("click", (event) => { const cell = event.target.closest("[data-i]"); if (cell) { select(Number(cell.dataset.i)); cell.focus(); } });
  grid.addEventListener("pointerover", (event) => { const cell = event.target.closest("[data-i]"); if (cell) showTip(event.clientX, event.clientY, describe(Number(cell.dataset.i))); });
  grid.addEventListener("pointerleave", hideTip);
  let marked = null;
  listeners.push((head) => {
    const within = grid.contains(document.activeElement);
    for (const [key, value] of [["aria-selected", "false"], ["tabindex", "-1"]]) marked?.setAttribute(key, value);
    marked = cellOf.get(head);
    for (const [key, value] of [["aria-selected", "true"], ["tabindex", "0"]]) marked?.setAttribute(key, value);
    if (within) marked?.focus({ preventScroll: true });
  });
  buildFilter();
  addEventListener("hashchange", () => { const head = headOfAddress(); if (head >= 0) select(head); });
}

// --- roles and search: what matches stays, the rest is dimmed

const filter = { roles: new Set(), text: "" };
function matches(head) {
  const role = roleColumn?.values[head] ?? "";
  if (filter.roles.size && !filter.roles.has(role)) return false;
  const wanted = pointed(filter.text.trim()).toLowerCase();
  if (!wanted) return true;
  if (/^[\d.]+$/.test(wanted)) return headLink(head) === wanted || headLink(head).startsWith(wanted.endsWith(".") ? wanted : `${wanted}.`);
  const name = headName(head).toLowerCase(), at = name.indexOf(wanted);
  const named = at >= 0 && !/\d\d/.test(name.slice(at + wanted.length - 1, at + wanted.length + 1)); // "layer 2" is not layer 20
  return named || role.toLowerCase().includes(wanted) || headId(head).toLowerCase() === wanted;
}

function applyFilter() {
  if (!grid) return [];
  const all = heads.map((_, i) => i);
  const found = all.filter(matches);
  const active = filter.roles.size > 0 || filter.text.trim() !== "";
  state.cluster = active ? new Set(found) : null;
  for (const [head, cell] of cellOf) cell.classList.toggle("dim", active && !state.cluster.has(head));
  for (const row of document.querySelectorAll("#heads-table tbody tr")) row.hidden = active && !state.cluster.has(Number(row.dataset.i));
  for (const view of views) if (view.ready) view.paint();
  byId("matches").textContent = active ? (found.length ? `${found.length} of ${heads.length} heads` : "no head matches") : "";
  return found;
}

function buildFilter() {
  const search = byId("search");
  search.addEventListener("input", () => { filter.text = search.value; applyFilter(); });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = filter.text = ""; applyFilter(); }
    if (event.key !== "Enter") return;
    const found = applyFilter();
    const best = data.strongest.find((i) => found.includes(i)) ?? found[0]; // of a role or a layer: its strongest head
    if (found.length) { select(best); cellOf.get(best)?.focus(); }
  });
  for (const chip of document.querySelectorAll(".roles button")) {
    chip.addEventListener("click", () => {
      const on = chip.getAttribute("aria-pressed") !== "true";
      chip.setAttribute("aria-pressed", String(on));
      filter.roles[on ? "add" : "delete"](chip.dataset.role);
      chip.closest("li").classList.toggle("open", on);
      for (const link of chip.closest("li").querySelectorAll(".extra")) link.hidden = !on;
      applyFilter();
    });
  }
}

// --- the address follows the head that a reader chooses

let chosenByReader = false;
listeners.push((head) => {
  if (!chosenByReader) return;
  try { history.replaceState(null, "", `#${encodeURIComponent(headLink(head))}`); } catch { /* some viewers have no address */ }
});
