"use strict";
// What everything else uses: the data, colours, themes, the tooltip. Text enters the page by textContent only.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const heads = data.heads; // [block, layer, head]
const manyBlocks = new Set(heads.map((h) => h[0])).size > 1;

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

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") node.textContent = value;
    else if (key === "on") for (const [name, handler] of Object.entries(value)) node.addEventListener(name, handler);
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

function format(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000 && size < 1e9) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

// plotly reads some tags in its labels; entities come out as plain signs
const plotText = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const headName = (i) => `${manyBlocks ? heads[i][0] + ", " : ""}layer ${heads[i][1]}, head ${heads[i][2]}`;
const headShort = (i) => `${manyBlocks ? heads[i][0] + " " : ""}${heads[i][1]}.${heads[i][2]}`;
const headId = (i) => heads[i].join(".");

// ---------------------------------------------------------------- themes

const stored = (() => {
  try { return localStorage.getItem("headscape-theme"); } catch { return null; }
})();
const systemDark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = stored;
const themeName = () => chosenTheme || (systemDark.matches ? "dark" : "light");
let theme = {};

function applyTheme(name) {
  document.documentElement.dataset.theme = name;
  const css = getComputedStyle(document.documentElement);
  const read = (key) => css.getPropertyValue("--" + key).trim();
  theme = { name, c: data.palette[name] };
  for (const key of ["ground", "card", "ink", "muted", "line", "soft", "mark", "accent"]) theme[key] = read(key);
  theme.paper = theme.card;
  // attention fades into the page where there is none
  theme.attention = name === "light"
    ? ["#f6f5f0", "#b9d2e8", "#6ea9d4", "#3079b8", "#0e4f90", "#062c5c"]
    : ["#23282f", "#1f4a8a", "#6a7386", "#a59c74", "#e1cc55", "#fff6a8"];
}

function rgb(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

// 256 colours along the stops
function ramp(stops) {
  const points = stops.map(rgb);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (points.length - 1);
    const k = Math.min(Math.floor(at), points.length - 2);
    return points[k].map((v, c) => Math.round(v + (points[k + 1][c] - v) * (at - k)));
  });
}
const scale = (stops) => stops.map((stop, i) => [i / (stops.length - 1), stop]);
const sequential = ramp(data.palette.sequential);

// "@c0", "@ink", "@c1/0.2" under a key about colour
function colourOf(name) {
  const [key, alpha] = name.slice(1).split("/");
  if (key === "sequential" || key === "diverging") return scale(data.palette[key]);
  const hex = /^c\d+$/.test(key) ? theme.c[Number(key.slice(1)) % theme.c.length] : theme[key];
  return alpha ? `rgba(${rgb(hex).join(",")},${alpha})` : hex;
}
function themed(value, key = "") {
  if (typeof value === "string") return value[0] === "@" && /color/i.test(key) ? colourOf(value) : value;
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
  if (Array.isArray(value)) return value.map((item) => themed(item, key));
  const out = {};
  for (const name of Object.keys(value)) out[name] = themed(value[name], name);
  return out;
}

// ---------------------------------------------------------------- tooltip

const tip = byId("tip");
function showTip(x, y, lines) {
  tip.replaceChildren(...lines.filter(Boolean).map((line) => el("div", { text: line })));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
  const top = y + 14 + box.height > innerHeight ? y - 14 - box.height : y + 14;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}
const hideTip = () => { tip.hidden = true; };
const pointer = { x: 0, y: 0 };
addEventListener("pointermove", (event) => { pointer.x = event.clientX; pointer.y = event.clientY; }, true);
