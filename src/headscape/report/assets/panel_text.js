// In the panel: the attention of one query over the text itself.

const MOST_TOKENS = 600;
const chosenQuery = { batch: -1, at: -1 };

// how tokens are put together to a text: word pieces without their signs, others with the spaces they bring
function spelled(tokens) {
  const spaced = tokens.some((t) => t.startsWith("·"));
  return tokens.map((t, i) => (spaced ? t.replace(/^·+/, (s) => " ".repeat(s.length)) : t.startsWith("##") ? t.slice(2) : (i ? " " : "") + t));
}

function showText(block, head, grey, value) {
  slot.text.replaceChildren();
  const { query_tokens: queries, key_tokens: keys } = block;
  const [nQuery, nKey] = block.shape;
  const bare = keys.every((t, i) => t === String(i)); // positions are no text
  if (block.coarse || bare || Math.max(nQuery, nKey) > MOST_TOKENS) return;
  const same = nQuery === nKey && queries.every((t, i) => t === keys[i]);
  if (chosenQuery.batch !== shownMaps.batch || chosenQuery.at >= nQuery) Object.assign(chosenQuery, { batch: shownMaps.batch, at: -1 });
  const strongest = block.heads[head].pairs.find(([q, k]) => q !== k && k > 0) ?? block.heads[head].pairs[0];
  let at = chosenQuery.at >= 0 ? chosenQuery.at : strongest?.[0] ?? nQuery - 1;
  const line = (tokens, mark) => el("p", { class: "tokens" }, ...spelled(tokens).map((text, i) => el("span", { [mark]: i, text })));
  const read = line(keys, "data-key"), asking = same ? read : line(queries, "data-query");
  const said = el("p", { class: "note", role: "status" });
  const box = el("div", { class: "text", role: "group", tabindex: "0", "aria-label": "Attention over the text. Left and right arrows choose the token that attends." },
    ...(same ? [read] : [el("h4", { text: "Attends from" }), asking, el("h4", { text: "to" }), read]));
  const lut = ramp(theme.attention);
  function paint() {
    const row = Float32Array.from({ length: nKey }, (_, k) => value(grey[at * nKey + k]));
    const low = data.maps.kind === "probs" ? 0 : Math.min(...row), high = Math.max(...row) || 1;
    read.querySelectorAll("span").forEach((span, k) => {
      const colour = lut[Math.round(255 * Math.sqrt(Math.max(0, (row[k] - low) / (high - low || 1))))];
      const bright = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2];
      span.style.background = row[k] - low > 0.02 * (high - low) ? `rgb(${colour.join(",")})` : "";
      span.style.color = row[k] - low > 0.02 * (high - low) ? (bright > 140 ? "#14171b" : "#fff") : "";
    });
    asking.querySelectorAll("span").forEach((span, q) => span.classList.toggle("query", q === at));
    const best = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 4).filter((k) => row[k] > 0.005 || data.maps.kind !== "probs");
    said.replaceChildren(el("bdi", { text: `“${queries[at]}”` }), ` (${at}) attends to `, ...best.flatMap((k, n) => [n ? ", " : "", el("bdi", { text: `“${keys[k]}”` }), ` (${k}) ${data.maps.kind === "probs" ? row[k].toFixed(2) : format(row[k])}`]));
    box.dataset.query = at;
  }
  const choose = (q) => { at = Math.max(0, Math.min(nQuery - 1, q)); Object.assign(chosenQuery, { batch: shownMaps.batch, at }); paint(); };
  asking.addEventListener("click", (event) => { const span = event.target.closest("span"); if (span) choose(Number(span.dataset.query ?? span.dataset.key)); });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    choose(at + step);
  });
  slot.text.replaceChildren(box, said);
  paint();
  const own = asking.children[at];
  if (own) box.scrollTop = own.offsetTop - box.clientHeight / 2;
}
