// The data of the page: heads, their columns, and the figures, which are unpacked when they are first used.

const data = JSON.parse(byId("data").textContent);
const heads = data.heads; // [block, layer, head]
const manyBlocks = new Set(heads.map((h) => h[0])).size > 1;
const headName = (i) => `${manyBlocks ? heads[i][0] + ", " : ""}layer ${heads[i][1]}, head ${heads[i][2]}`;
const headShort = (i) => `${manyBlocks ? heads[i][0] + " " : ""}${heads[i][1]}.${heads[i][2]}`;
const headId = (i) => heads[i].join(".");

function bytes(base64) {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
  return out;
}

// A packed array becomes a typed array, of order two an array of its rows; everything else keeps its shape.
function unpack(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(unpack);
  if (!("$" in value)) {
    const out = {};
    for (const key of Object.keys(value)) out[key] = unpack(value[key]);
    return out;
  }
  const buffer = bytes(value.data).buffer;
  let flat;
  if (value.$ === "f4") flat = new Float32Array(buffer);
  else if (value.$ === "i4") flat = new Int32Array(buffer);
  else {
    const codes = new Uint16Array(buffer);
    const step = (value.high - value.low) / 65534 || 1;
    flat = Float32Array.from(codes, (c) => (c === 65535 ? NaN : value.low + c * step));
  }
  if (value.shape.length < 2) return flat;
  const width = value.shape[1];
  return Array.from({ length: value.shape[0] }, (_, i) => flat.subarray(i * width, (i + 1) * width));
}

const { figures } = data;
const opened = (id) => {
  const figure = figures[id];
  if (!figure.open) {
    figure.open = true;
    if (figure.type === "linked") figure.data = unpack(figure.data);
    if (figure.type === "plot") { figure.traces = unpack(figure.traces); figure.layout = unpack(figure.layout); }
    if (figure.type === "maps") figure.panels = unpack(figure.panels);
  }
  return figure;
};
const firstOf = (kind) => Object.keys(figures).find((id) => figures[id].type === "linked" && figures[id].kind === kind);
const columns = data.columns.map((column) => ({ ...column, values: unpack(column.values) }));
const treeId = firstOf("head_tree");
