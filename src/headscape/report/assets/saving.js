// Save buttons: every figure as a picture file.

function download(url, name) {
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

// canvases side by side on the colour of the page, their names above them
function joined(canvases) {
  const ratio = Math.min(3, devicePixelRatio || 1), gap = 12 * ratio, line = 20 * ratio;
  const whole = el("canvas", { width: canvases.reduce((w, c) => w + c.width + gap, gap), height: line + 2 * gap + Math.max(...canvases.map((c) => c.height)) });
  const context = whole.getContext("2d");
  context.fillStyle = theme.card;
  context.fillRect(0, 0, whole.width, whole.height);
  let x = gap;
  context.font = `600 ${13 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
  for (const canvas of canvases) {
    context.fillStyle = theme.ink;
    context.fillText(canvas.closest(".map").querySelector(".cap b").textContent, x, gap + 0.6 * line, canvas.width);
    context.drawImage(canvas, x, gap + line);
    x += canvas.width + gap;
  }
  return whole.toDataURL("image/png");
}

async function save(place, name) {
  const plot = place.querySelector(".js-plotly-plot");
  const canvases = [...place.querySelectorAll(".map canvas")];
  if (canvases.length) download(joined(canvases), `${name}.png`);
  else if (plot) download(await Plotly.toImage({ data: plot.data, layout: { ...plot.layout, paper_bgcolor: theme.card } }, { format: "png", scale: 2, width: plot.clientWidth, height: plot.clientHeight }), `${name}.png`);
}

const saveButton = (act, what) => el("button", { type: "button", class: "save", text: "Save", "aria-label": `Save ${what} as a picture`, on: { click: act } });
function addSaving() {
  for (const box of document.querySelectorAll("figure.card [data-figure]")) {
    const card = box.closest("figure");
    card.querySelector(".tools").append(saveButton(async () => { await drawNow(box); save(card, card.id.replace(/^fig-/, "")); }, card.querySelector("h3").textContent));
  }
}
