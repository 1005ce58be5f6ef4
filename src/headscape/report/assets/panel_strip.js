// In the panel: the selected head on every input, small, side by side and on one colour scale.

const SMALL = 92; // pixels per side

async function showStrip(head) {
  const mine = drawing;
  const shown = batches.map((batch, i) => ({ batch, i, block: batch.blocks[heads[head][0]] })).filter(({ block }) => block && pngsOf(block, head));
  if (shown.length < 2) { slot.strip.replaceChildren(); return; }
  const pictures = await Promise.all(shown.map(({ block }) => decode(pngsOf(block, head)[0])));
  if (mine !== drawing) return; // another head was chosen meanwhile
  const root = data.maps.kind === "probs";
  const ranges = shown.map(({ block }) => block.heads[head].ranges[0]);
  const low = Math.min(...ranges.map((r) => r[0])), high = Math.max(...ranges.map((r) => r[1]));
  const lut = ramp(theme.attention);
  const buttons = shown.map(({ batch, i, block }, n) => {
    const { image, grey } = pictures[n];
    const [a, b] = ranges[n];
    const colours = new ImageData(image.width, image.height);
    grey.forEach((g, p) => {
      const value = a + (b - a) * (root ? (g / 255) ** 2 : g / 255);
      const share = (value - low) / (high - low || 1);
      colours.data.set([...lut[Math.round(255 * Math.max(0, Math.min(1, root ? Math.sqrt(share) : share)))], 255], 4 * p);
    });
    const canvas = el("canvas", { width: image.width, height: image.height, "aria-hidden": "true" });
    canvas.getContext("2d").putImageData(colours, 0, 0);
    const start = spelled(block.key_tokens).slice(0, 12).join("").trim();
    return el("button", { type: "button", "aria-pressed": String(i === shownMaps.batch), "aria-label": `input ${batch.name}: ${start}`, title: start, "data-batch": i,
      on: { click: () => { shownMaps.batch = i; slot.batch.value = i; showMaps(head); } } }, canvas, el("span", { text: String(batch.name) }));
  });
  slot.strip.replaceChildren(el("h4", { text: `This head on ${shown.length} inputs, one colour scale` }), el("div", { class: "strip-row" }, ...buttons));
}
