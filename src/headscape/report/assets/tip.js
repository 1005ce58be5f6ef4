// The tooltip, and where the pointer is.

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
