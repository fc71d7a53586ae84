// The top keys of a query as arcs over the line of all positions, or over the part with these keys.
const SVG = "http://www.w3.org/2000/svg";
function drawn(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function drawArcs(tops) {
  const svg = byId("arcs"),
    width = svg.clientWidth || 360,
    base = 82,
    position = positionOf(state.query);
  const whole = Math.max(facts.kv_len - 1, position, 1),
    used = [position, ...tops.map((each) => each.key)];
  let first = Math.min(...used),
    last = Math.max(...used);
  const margin = Math.max(8, Math.round(0.1 * (last - first)));
  [first, last] =
    last - first > whole / 2
      ? [0, whole]
      : [Math.max(0, first - margin), Math.min(whole, last + margin)];
  const x = (place) =>
    8 + (clamp(place - first, 0, last - first) / Math.max(1, last - first)) * (width - 16);
  svg.setAttribute("viewBox", `0 0 ${width} 110`);
  const parts = [drawn("line", { x1: 8, x2: width - 8, y1: base, y2: base })];
  for (const { key, weight } of [...tops].reverse()) {
    const from = x(position),
      to = x(key),
      half = Math.abs(from - to) / 2,
      height = Math.min(74, Math.max(half, 5));
    const shape =
      half < 1
        ? `M${to} ${base}v-14`
        : `M${from} ${base}A${half} ${height} 0 0 ${from > to ? 0 : 1} ${to} ${base}`;
    const arc = drawn("path", {
      d: shape,
      "stroke-width": 0.7 + 5 * clamp(weight, 0, 1),
      "stroke-opacity": 0.25 + 0.7 * Math.sqrt(clamp(weight, 0, 1)),
    });
    arc.append(drawn("title", {}, `key ${key}${quoted(keyText(key))}: ${number(weight, DIGITS)}`));
    parts.push(arc);
  }
  parts.push(drawn("circle", { cx: x(position), cy: base, r: 3.5 }));
  const free = []; // a label is left out if a key of a larger weight has a label there
  for (const { key } of tops.slice(0, 4)) {
    const at = clamp(x(key), 26, width - 26);
    if (free.some((other) => Math.abs(other - at) < 56)) continue;
    free.push(at);
    parts.push(
      drawn(
        "text",
        { x: at, y: base + 13, "text-anchor": "middle" },
        tokensOfKeys ? shown(keyText(key), 9).trim() || "␣" : key,
      ),
    );
  }
  parts.push(
    drawn("text", { x: 8, y: base + 26 }, first),
    drawn("text", { x: width - 8, y: base + 26, "text-anchor": "end" }, last),
  );
  svg.replaceChildren(...parts);
  svg.setAttribute(
    "aria-label",
    `Arcs from position ${position} to keys ${tops.map((each) => each.key).join(", ") || "none"}`,
  );
}
