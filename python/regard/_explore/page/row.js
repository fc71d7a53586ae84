// One query: the keys with the largest weights, its statistics, and its text.
function topKeys(rows, query) {
  const places = rows.get("top_keys"),
    weights = rows.get("top_weights").values,
    [count, length] = places.shape,
    found = [];
  const modulus = places.values.BYTES_PER_ELEMENT === 2 ? 65536 : 4294967296;
  for (let rank = 0; rank < count; rank++) {
    const at = rank * length + query,
      weight = weights[at];
    if (weight > 0) found.push({ key: (places.values[at] + query) % modulus, weight });
  }
  return found;
}
function showRow(data) {
  const { query, layer, head } = state,
    tops = topKeys(data.rows, query),
    position = positionOf(query);
  const first = data.rows.get("top_weights").values[query],
    covered = tops.reduce((sum, each) => sum + each.weight, 0);
  byId("row-title").textContent = `Query ${query}${quoted(queryText(query))}`;
  const share = covered > 0.995 ? "all" : `${number(100 * covered, 2)} %`;
  const many = tops.length === 1 ? "One key holds" : `${tops.length} keys hold`;
  byId("row-summary").textContent =
    (first !== first
      ? "The weights of this query are not numbers"
      : tops.length
        ? `${many} ${share} of its weight`
        : "This query is fully masked") +
    ` in ${headName(layer, head)}${position === query ? "" : `, where it is at position ${position}`}.`;
  const body = byId("top-keys").tBodies[0];
  body.replaceChildren(
    ...tops.map(({ key, weight }) => {
      const go = element("button", { type: "button", "aria-label": `key ${key}` }, String(key)),
        bar = element("span", { class: "bar", "aria-hidden": "true" });
      go.addEventListener("click", () => {
        change({ key });
      });
      bar.style.width = `${clamp(weight, 0, 1) * 100}%`;
      const cell = element("td", {}, number(weight, DIGITS), bar);
      return element(
        "tr",
        key === state.key ? { "aria-current": "true" } : {},
        element("td", {}, go),
        element("td", {}, tokensOfKeys ? inContext(key) : distance(position - key)),
        cell,
      );
    }),
  );
  byId("top-keys").hidden = !tops.length;
  byId("row-statistics").replaceChildren(
    ...Object.keys(LABELS).flatMap((name) => {
      const values = data.rows.get(name)?.values;
      return values && values.length && !name.startsWith("column")
        ? [element("dt", {}, LABELS[name]), element("dd", {}, number(values[query], DIGITS))]
        : [];
    }),
  );
  drawArcs(tops);
  showText(data);
}
function distance(steps) {
  return steps === 0 ? "itself" : `${Math.abs(steps)} ${steps > 0 ? "before" : "after"}`;
}
// If the page has each weight and the text is short: the text, shaded like the picture's row.
function showText(data) {
  const box = byId("text");
  box.hidden = !(facts.exact && tokensOfKeys && facts.kv_len <= 600);
  if (box.hidden) return;
  const { plane } = data;
  box.replaceChildren(
    ...tokensOfKeys.flatMap((token, key) => {
      const value = plane.values[state.query * plane.width + key],
        index = data.index(value, data.largest),
        [red, green, blue] = data.table[index];
      const span = element("span", { title: `key ${key}: ${number(value)}` }, shown(token) || "∅");
      span.style.background = `rgb(${red} ${green} ${blue})`;
      span.style.color = luminance(red, green, blue) > 0.179 ? "#000" : "#fff";
      if (positionOf(state.query) === key) span.className = "own";
      span.addEventListener("click", () => change({ key }));
      return [span, glue];
    }),
  );
}
