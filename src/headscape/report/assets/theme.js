// Light and dark, and the colours of either.

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
const sequential = ramp(data.palette.sequential), diverging = ramp(data.palette.diverging);

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
