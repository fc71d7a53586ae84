// The labels of the picture: tokens or numbers along its axes, and the scale of its colors.
function ticks(first, end, most) {
  const rough = (end - first) / Math.max(1, most),
    power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? 1),
    found = [];
  for (let value = Math.ceil(first / step) * step; value < end; value += step) found.push(value);
  return found;
}
function drawAxes(pen, x, y) {
  const [q0, q1, k0, k1] = state.view,
    tall = plot.height / (q1 - q0),
    wide = plot.width / (k1 - k0);
  pen.fillStyle = style("--soft");
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const rowsNamed = queryText(0) !== undefined && tall >= 12,
    keysNamed = keyText(0) !== undefined && wide >= 12;
  const clipped = (text, most) => {
    let cut = text;
    while (cut.length > 1 && pen.measureText(cut).width > most) cut = cut.slice(0, -2) + "…";
    return cut;
  };
  for (const query of rowsNamed
    ? ticks(q0, q1, q1 - q0)
    : ticks(q0 - 0.5, q1 - 0.5, plot.height / 40))
    if (query >= 0)
      pen.fillText(
        rowsNamed ? clipped(shown(queryText(query), 18), plot.left - 12) : query,
        plot.left - 6,
        y(query + 0.5),
      );
  for (const key of keysNamed
    ? ticks(k0, k1, k1 - k0)
    : ticks(k0 - 0.5, k1 - 0.5, plot.width / 70)) {
    if (key < 0) continue;
    pen.save();
    pen.translate(x(key + 0.5), plot.top - 6);
    if (keysNamed) {
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(clipped(shown(keyText(key), 18), plot.top - 22), 0, 0);
    } else {
      pen.textAlign = "center";
      pen.textBaseline = "bottom";
      pen.fillText(key, 0, 0);
    }
    pen.restore();
  }
  pen.fillStyle = style("--ink");
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillText("keys →", plot.left, keysNamed ? 2 : plot.top - 34);
  pen.fillText("queries ↓", 2, plot.top - 16);
}
function drawLegend(data) {
  const { pen, width } = sized(byId("legend"), 40),
    left = 24,
    span = width - 36,
    isLog = state.scale === "log";
  for (let i = 0; i < 255; i++) {
    pen.fillStyle = `rgb(${data.table[i].join(" ")})`;
    pen.fillRect(left + (i * span) / 255, 4, span / 255 + 0.7, 12);
  }
  pen.strokeStyle = style("--line");
  pen.strokeRect(left, 4, span, 12);
  pen.fillStyle = style("--soft");
  pen.textAlign = "center";
  pen.textBaseline = "top";
  const powers = isLog
    ? state.other
      ? [-1, -0.01, 0, 0.01, 1]
      : [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1]
    : state.other
      ? [-1, -0.5, 0, 0.5, 1].map((s) => s * data.largest)
      : [0, 0.25, 0.5, 0.75, 1].map((s) => s * data.largest);
  for (const value of powers) {
    const at = data.index(value, data.largest),
      labeled =
        (value === 1e-6 ? "≤" : "") +
        number(value, 2)
          .replace(/(\.\d*?)0+(?=e|$)/, "$1")
          .replace(/\.(?=e|$)/, "");
    // The numbers at the ends stay whole: a part of a number would be another number.
    const half = pen.measureText(labeled).width / 2;
    pen.fillText(labeled, clamp(left + ((at + 0.5) * span) / 255, half, width - half), 20);
  }
  byId("legend").setAttribute(
    "aria-label",
    `Color scale, ${isLog ? "logarithmic" : "linear"}, from ${number(powers[0], 2)} to ${number(powers.at(-1), 2)}`,
  );
}
