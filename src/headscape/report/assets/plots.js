// Drawing with plotly: one base layout for all, in the colours of the theme.

const coarse = matchMedia("(pointer: coarse)").matches;
const config = {
  displaylogo: false,
  responsive: true,
  showSendToCloud: false,
  plotlyServerURL: "",
  scrollZoom: false,
  displayModeBar: coarse ? false : "hover",
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
};
const config3d = { ...config, modeBarButtons: [["orbitRotation", "pan3d", "zoom3d", "resetCameraDefault3d", "toImage"]] };
const configStill = { ...config, displayModeBar: false };

function merge(base, over) {
  const out = { ...base };
  for (const [key, value] of Object.entries(over)) {
    const both = value && typeof value === "object" && !Array.isArray(value) && !ArrayBuffer.isView(value);
    out[key] = both && typeof out[key] === "object" ? merge(out[key], value) : value;
  }
  return out;
}

function baseLayout(over = {}) {
  const axis = {
    gridcolor: theme.line, zerolinecolor: theme.line, linecolor: theme.muted, tickcolor: theme.muted,
    tickfont: { size: 11, color: theme.muted }, title: { font: { size: 12, color: theme.muted }, standoff: 8 },
    automargin: true, exponentformat: "power",
  };
  const more = Object.keys(over).filter((key) => /^[xy]axis\d+$/.test(key)).map((key) => [key, axis]);
  return merge({
    ...Object.fromEntries(more),
    autosize: true,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: theme.ink },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 52, r: 12, t: 8, b: 44 },
    xaxis: axis, yaxis: axis,
    dragmode: coarse ? false : "zoom",
    hoverlabel: { bgcolor: theme.ink, bordercolor: theme.ink, font: { color: theme.ground, size: 12 } },
    legend: { orientation: "h", x: 0, y: -0.22, yanchor: "top", font: { size: 12 }, itemwidth: 30 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.muted, activecolor: theme.ink },
  }, over);
}

function drawPlot(box, figure) {
  const traces = themed(figure.traces).map((trace) => (
    trace.type === "heatmap"
      ? { ...trace, colorbar: merge({ thickness: 12, outlinewidth: 0, tickfont: { size: 11, color: theme.muted }, title: { side: "right", font: { size: 12 } } }, trace.colorbar || {}) }
      : trace
  ));
  return Plotly.react(box, traces, baseLayout(themed(figure.layout)), config);
}

function sparseTicks(list, most = 14) {
  const step = Math.max(1, Math.ceil(list.length / most));
  const at = [...list.keys()].filter((i) => i % step === 0);
  return { tickmode: "array", tickvals: at, ticktext: at.map((i) => plotText(list[i])) };
}
