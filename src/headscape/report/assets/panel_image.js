// In the panel: attention over the input image.

function showPicture(batch, block, head, grey, value) {
  const [rows, columnsN] = batch.picture.grid;
  const [nQuery, nKey] = block.shape;
  const extra = nKey - rows * columnsN; // [CLS] and its like come first
  if (extra < 0) return;
  const options = [["mean", "all queries (mean)"]];
  if (block.coarse) options.push(["0", `query ${block.query_tokens[0]}`]);
  else for (let q = 0; q < nQuery; q++) options.push([String(q), `query ${block.query_tokens[q]}`]);
  const menu = el("select", { id: "pick-query" }, ...options.map(([v, text]) => el("option", { value: v, text })));
  menu.value = options.some(([v]) => v === shownMaps.query) ? shownMaps.query : "mean";
  const canvas = el("canvas", { width: 448, height: 448, role: "img", id: "seen", "aria-label": `Attention of ${headName(head)} over the input image` });
  const rowOf = (which) => {
    if (block.coarse) return block.heads[head].rows[which === "mean" ? 0 : 1];
    const at = (q) => Float32Array.from({ length: nKey }, (_, k) => value(grey[q * nKey + k]));
    if (which !== "mean") return at(Number(which));
    const total = new Float32Array(nKey);
    for (let q = 0; q < nQuery; q++) at(q).forEach((v, k) => { total[k] += v / nQuery; });
    return total;
  };
  const said = el("p", { class: "note" });
  async function draw() {
    const { image } = await decode(batch.picture.png);
    const weights = Array.from(rowOf(menu.value)).slice(extra);
    const high = Math.max(...weights), low = Math.min(0, ...weights);
    const c = canvas.getContext("2d");
    c.imageSmoothingEnabled = false;
    c.globalAlpha = 1;
    c.filter = "grayscale(1) brightness(.8)";
    c.drawImage(image, 0, 0, 448, 448);
    c.filter = "none";
    const w = 448 / columnsN, h = 448 / rows;
    weights.forEach((v, p) => {
      const share = (v - low) / (high - low || 1);
      c.globalAlpha = 0.12 + 0.62 * share;
      c.fillStyle = `rgb(${sequential[Math.round(255 * share)].join(",")})`;
      c.fillRect((p % columnsN) * w, Math.floor(p / columnsN) * h, w, h);
    });
    c.globalAlpha = 1;
    const own = Number(menu.value) - extra;
    if (menu.value !== "mean" && own >= 0) {
      c.strokeStyle = theme.mark; c.lineWidth = 5;
      c.strokeRect((own % columnsN) * w, Math.floor(own / columnsN) * h, w, h);
    }
    said.textContent = `Largest weight on a patch: ${format(high)}. ` + (extra ? `On tokens outside the image (${block.key_tokens.slice(0, extra).join(", ")}): ${format(Array.from(rowOf(menu.value)).slice(0, extra).reduce((a, b) => a + b, 0))}.` : "");
    canvas.dataset.query = menu.value;
  }
  menu.addEventListener("change", () => { shownMaps.query = menu.value; draw(); });
  if (!block.coarse) {
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const x = Math.floor(((event.clientX - box.left) / box.width) * columnsN), y = Math.floor(((event.clientY - box.top) / box.height) * rows);
      menu.value = String(extra + y * columnsN + x);
      shownMaps.query = menu.value;
      draw();
    });
  }
  slot.seen.replaceChildren(el("div", { class: "seen" }, canvas, el("div", { class: "side" },
    el("label", { for: "pick-query", text: "Attention from" }), menu, said,
    el("p", { class: "note", text: block.coarse ? "" : "Click a patch to see where it attends; the outlined patch is the query." }))));
  draw();
}
