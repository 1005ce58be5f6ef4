// In the panel: the selected head on every input, small, side by side and on one colour scale.

async function showStrip(head) {
  const mine = drawing;
  const strip = data.maps.strip?.[heads[head][0]];
  const png = strip && pngsOf(strip, head);
  if (!png) { slot.strip.replaceChildren(); return; }
  const { image, grey } = await decode(png);
  if (mine !== drawing) return; // another head was chosen meanwhile
  const lut = ramp(theme.attention), field = image.width / strip.batches.length;
  const inputs = strip.batches.map(({ name, shape: [height, width], tokens }, n) => {
    const colours = new ImageData(width, height);
    for (let i = 0, p = 0; i < height; i++) for (let j = 0; j < width; j++, p++) colours.data.set([...lut[grey[i * image.width + n * field + j]], 255], 4 * p);
    const canvas = el("canvas", { width, height, "aria-hidden": "true" });
    canvas.getContext("2d").putImageData(colours, 0, 0);
    const inside = [canvas, el("span", { text: String(name) })], start = spelled(tokens).join("").trim();
    const i = batches.findIndex((batch) => batch.name === name);
    if (i < 0) return el("div", { role: "img", "aria-label": `input ${name}: ${start} (only this small map is in the file)`, title: start, "data-input": name }, ...inside);
    return el("button", { type: "button", "aria-pressed": String(i === shownMaps.batch), "aria-label": `input ${name}: ${start}`, title: start, "data-batch": i, "data-input": name,
      on: { click: () => { shownMaps.batch = i; slot.batch.value = i; showMaps(head); } } }, ...inside);
  });
  slot.strip.replaceChildren(el("h4", { text: `This head on ${inputs.length} inputs, one color scale` }), el("div", { class: "strip-row" }, ...inputs));
}
