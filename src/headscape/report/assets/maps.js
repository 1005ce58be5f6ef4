// Attention maps: 8-bit pictures decoded once, coloured and labelled on a canvas.

const decoded = new Map();
function decode(png) {
  if (!decoded.has(png)) {
    if (decoded.size > 40) decoded.clear();
    decoded.set(png, new Promise((resolve, reject) => {
      const image = new Image();
      image.onload = () => {
        const canvas = el("canvas", { width: image.width, height: image.height });
        const context = canvas.getContext("2d", { willReadFrequently: true });
        context.drawImage(image, 0, 0);
        const { data: pixels } = context.getImageData(0, 0, image.width, image.height);
        const grey = new Uint8Array(image.width * image.height);
        for (let i = 0; i < grey.length; i++) grey[i] = pixels[4 * i];
        resolve({ grey, image });
      };
      image.onerror = () => reject(new Error("an image in this file is damaged"));
      image.src = "data:image/png;base64," + png;
    }));
  }
  return decoded.get(png);
}

// One axis of a map: which tokens a cell holds, and how to name them.
function mapAxis(tokens, bounds, order) {
  const members = (i) => Array.from({ length: bounds[i + 1] - bounds[i] }, (_, k) => (order ? order[bounds[i] + k] : bounds[i] + k));
  return {
    n: bounds.length - 1,
    members,
    first: (i) => (order ? order[bounds[i]] : bounds[i]),
    label: (i) => tokens[order ? order[bounds[i]] : bounds[i]],
    name(i) {
      const inside = members(i);
      const one = `“${tokens[inside[0]]}” (${inside[0]})`;
      return inside.length > 1 ? `${one} and ${inside.length - 1} more` : one;
    },
  };
}

// {grey, query, key, absent(i, j), value(grey), title}
const MAX_LABEL = 26;
class MapView {
  constructor(model, { large = false } = {}) {
    Object.assign(this, { model, large });
    this.window = [0, model.query.n, 0, model.key.n];
    this.canvas = el("canvas", { role: "img", tabindex: "0", "aria-label": model.alt });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.source = null;
  }
  colours() {
    const lut = ramp(this.model.signed ? data.palette.diverging : theme.attention), ground = rgb(theme.card);
    const { grey, query, key, absent } = this.model;
    const image = new ImageData(key.n, query.n);
    for (let i = 0, p = 0; i < query.n; i++) {
      for (let j = 0; j < key.n; j++, p++) {
        const c = absent(i, j) ? ground : lut[grey[p]];
        image.data.set(c, 4 * p);
        image.data[4 * p + 3] = 255;
      }
    }
    this.source = el("canvas", { width: key.n, height: query.n });
    this.source.getContext("2d").putImageData(image, 0, 0);
  }
  draw(fresh = true) {
    const width = this.canvas.clientWidth || this.canvas.parentElement?.clientWidth || 0;
    if (!width) return;
    if (fresh || !this.source) this.colours();
    const ratio = Math.min(3, devicePixelRatio || 1);
    const [q0, q1, k0, k1] = this.window;
    const left = this.large ? 110 : 50, bottom = this.large ? 92 : 50;
    const w = width - left - 2, top = 7;
    const h = this.large ? Math.min(w, innerHeight * 0.86 - bottom - 90) : Math.min(w, Math.max(40, (w * (q1 - q0)) / (k1 - k0)));
    this.frame = { left, top, w, h };
    this.canvas.width = width * ratio;
    this.canvas.height = (top + h + bottom) * ratio;
    this.canvas.style.height = top + h + bottom + "px";
    const c = this.canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.imageSmoothingEnabled = w * ratio < k1 - k0;
    c.drawImage(this.source, k0, q0, k1 - k0, q1 - q0, left, top, w, h);
    c.strokeStyle = theme.line;
    c.strokeRect(left - 0.5, top - 0.5, w + 1, h + 1);
    c.fillStyle = theme.muted;
    const size = this.large ? 12 : 10;
    c.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    this.labels(c, this.model.query, q0, q1, h, size + 3, left - 6, (at, text) => {
      c.textAlign = "right"; c.textBaseline = "middle"; c.fillText(text, left - 4, top + at);
    });
    this.labels(c, this.model.key, k0, k1, w, size + 3, bottom - 6, (at, text) => {
      c.save(); c.translate(left + at, top + h + 5); c.rotate(-Math.PI / 2.6); c.textAlign = "right"; c.textBaseline = "middle"; c.fillText(text, 0, 0); c.restore();
    });
  }
  labels(c, axis, from, to, length, spacing, room, put) {
    const cell = length / (to - from);
    const step = Math.max(1, Math.ceil(spacing / cell));
    for (let i = Math.ceil(from); i < to; i += step) {
      let text = String(axis.label(i)).slice(0, MAX_LABEL);
      while (text.length > 1 && c.measureText(text).width > room) text = text.slice(0, -2) + "…";
      put((i - from + 0.5) * cell, text);
    }
  }
  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const { left, top, w, h } = this.frame || {};
    const [q0, q1, k0, k1] = this.window;
    const x = (event.clientX - box.left - left) / w, y = (event.clientY - box.top - top) / h;
    if (!(x >= 0 && x < 1 && y >= 0 && y < 1)) return null;
    return [Math.floor(q0 + y * (q1 - q0)), Math.floor(k0 + x * (k1 - k0))];
  }
  point(event) {
    const cell = this.cellAt(event);
    if (!cell) return hideTip();
    const { query, key, grey, absent, value } = this.model;
    const [i, j] = cell;
    const amount = absent(i, j) ? "masked: this query cannot attend to this key" : `${this.model.what} ${format(value(grey[i * key.n + j]))}`;
    return showTip(event.clientX, event.clientY, [amount, `query ${query.name(i)}`, `key ${key.name(j)}`]);
  }
  zoom(factor, at = [0.5, 0.5]) {
    const { query, key } = this.model;
    const [q0, q1, k0, k1] = this.window;
    const fit = (from, to, n, share) => {
      const length = Math.min(n, Math.max(Math.min(4, n), (to - from) / factor));
      const start = Math.min(n - length, Math.max(0, from + share * (to - from) - share * length));
      return [start, start + length];
    };
    this.window = [...fit(q0, q1, query.n, at[1]), ...fit(k0, k1, key.n, at[0])];
    this.draw(false);
  }
  pan(dx, dy) {
    const { query, key } = this.model;
    const [q0, q1, k0, k1] = this.window;
    const slide = (from, to, n, by) => { const start = Math.min(n - (to - from), Math.max(0, from + by)); return [start, start + to - from]; };
    this.window = [...slide(q0, q1, query.n, dy * (q1 - q0)), ...slide(k0, k1, key.n, dx * (k1 - k0))];
    this.draw(false);
  }
}

const openMaps = new Set();
function mapFigure(model) {
  const view = new MapView(model);
  const open = () => enlarge(model);
  view.canvas.addEventListener("click", open);
  view.canvas.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } });
  const box = el("div", { class: "map" }, el("div", { class: "cap" }, el("b", { text: model.title }), el("span", { text: model.note || "" })), view.canvas);
  openMaps.add(view);
  new ResizeObserver(() => view.draw(false)).observe(box);
  return { box, view };
}

async function drawMaps(box, figure) {
  const made = [];
  for (const panel of figure.panels) {
    const { grey } = await decode(panel.png);
    const [low, high] = panel.range;
    const { box: inner, view } = mapFigure({
      grey, title: panel.name || "map", note: `${panel.shape[0]} × ${panel.shape[1]}`, alt: `Map ${panel.name}`, what: "value",
      query: mapAxis(panel.query_tokens, panel.query.bounds), key: mapAxis(panel.key_tokens, panel.key.bounds),
      absent: (i, j) => panel.signed && grey[i * (panel.key.bounds.length - 1) + j] === 0, signed: panel.signed, value: (g) => low + (high - low) * (panel.root ? (g / 255) ** 2 : g / 255),
    });
    box.append(inner);
    made.push(view);
  }
  for (const view of made) view.draw();
}
