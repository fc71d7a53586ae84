// Statistics along the queries, the keys and the heads.
function drawChart(id, values, marked, label, choose, ends = [0, values.length - 1]) {
  const canvas = byId(id),
    { pen, width, height } = sized(canvas, 96),
    bottom = height - 16;
  let least = Infinity,
    most = -Infinity;
  for (const value of values)
    if (Number.isFinite(value)) {
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
  if (least > most) least = most = 0;
  const base = least >= 0 ? 0 : least,
    range = most - base || 1,
    y = (value) => bottom - ((value - base) / range) * (bottom - 8);
  const bounds = [most, base].map((value) => number(value, 2)),
    left = Math.max(46, ...bounds.map((text) => Math.ceil(pen.measureText(text).width) + 6)),
    span = width - left - 6;
  pen.strokeStyle = style("--line");
  pen.beginPath();
  pen.moveTo(left, 4);
  pen.lineTo(left, bottom + 0.5);
  pen.lineTo(width - 6, bottom + 0.5);
  pen.stroke();
  pen.strokeStyle = pen.fillStyle = style("--accent");
  const columns = Math.max(1, Math.floor(span)),
    per = values.length / columns;
  if (per <= 1) {
    const size = span / values.length;
    values.forEach((value, i) => {
      if (Number.isFinite(value))
        pen.fillRect(
          left + i * size + 0.15 * size,
          y(value),
          Math.max(0.7, 0.7 * size),
          Math.max(1, bottom - y(value)),
        );
    });
  } else {
    let before = NaN;
    for (let c = 0; c < columns; c++) {
      // from the smallest to the largest value of a column, joined to the previous column
      let low = before === before ? before : Infinity,
        high = before === before ? before : -Infinity;
      for (
        let i = Math.floor(c * per);
        i < Math.max(Math.floor(c * per) + 1, Math.floor((c + 1) * per));
        i++
      ) {
        const value = values[i];
        if (value < low) low = value;
        if (value > high) high = value;
        before = value;
      }
      if (low <= high) pen.fillRect(left + c, y(high), 1, Math.max(1, y(low) - y(high)));
    }
  }
  if (marked >= 0) {
    pen.strokeStyle = style("--mark");
    const at = left + ((marked + 0.5) / values.length) * span;
    pen.beginPath();
    pen.moveTo(at, 2);
    pen.lineTo(at, bottom);
    pen.stroke();
  }
  pen.fillStyle = style("--soft");
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.fillText(bounds[0], left - 4, 9);
  pen.fillText(bounds[1], left - 4, bottom - 3);
  pen.textBaseline = "top";
  pen.fillText(ends[1], width - 6, bottom + 3);
  pen.textAlign = "left";
  pen.fillText(ends[0], left, bottom + 3);
  canvas.setAttribute(
    "aria-label",
    `${label}, from ${number(least)} to ${number(most)}; ${marked >= 0 ? `${number(values[marked])} at ${marked}` : ""}`,
  );
  canvas.onclick = (event) =>
    choose(
      clamp(Math.floor(((event.offsetX - left) / span) * values.length), 0, values.length - 1),
    );
}
function drawCharts(data) {
  const places = [...cells.keys()].map((place) => place.split(".").map(Number)),
    at = places.findIndex(([l, h]) => l === state.layer && h === state.head);
  const ofHeads = places.map(([l, h]) => headFacts(l, h).statistics[state.ofHeads] ?? NaN),
    ends = [places[0], places.at(-1)].map(([l, h]) =>
      facts.layers.length === 1
        ? shown(headFacts(l, h).name, 9)
        : facts.layers[l].label.length > 9
          ? String(l)
          : shown(facts.layers[l].label),
    );
  byId("head-chart").hidden = !state.ofHeads;
  if (state.ofHeads)
    drawChart(
      "head-chart",
      ofHeads,
      at,
      `${LABELS[state.ofHeads]} by head`,
      (chosen) => change({ layer: places[chosen][0], head: places[chosen][1] }),
      ends,
    );
  const charts = [
    ["query", state.ofQueries, state.query, (query) => change({ query })],
    ["key", state.ofKeys, state.key, (key) => change({ key })],
  ];
  for (const [id, name] of charts) byId(`${id}-chart`).parentElement.hidden = !data.rows.has(name); // all, before any is measured
  for (const [id, name, marked, choose] of charts)
    if (data.rows.has(name))
      drawChart(
        `${id}-chart`,
        data.rows.get(name).values,
        marked,
        `${LABELS[name]} by ${id}`,
        choose,
      );
}
function fillChoices() {
  const described = facts.layers.flatMap((layer) => layer.heads),
    first = described[0];
  const fill = (id, name, choices) => {
    byId(id).replaceChildren(
      ...choices.map((each) => element("option", { value: each }, LABELS[each])),
    );
    byId(id).closest("label").hidden = !choices.length;
    defaults[name] = choices[0] ?? "";
    byId(id).addEventListener("change", () => change({ [name]: byId(id).value }));
  };
  const names = first.rows.map(([name]) => name).filter((name) => name in LABELS);
  fill(
    "query-statistic",
    "ofQueries",
    names.filter((name) => !name.startsWith("column")),
  );
  fill("key-statistic", "ofKeys", names.filter((name) => name.startsWith("column")).reverse());
  fill("head-statistic", "ofHeads", Object.keys(first.statistics));
  facts.layers.forEach((layer, l) =>
    layer.heads.forEach((_, h) =>
      byId("other").append(element("option", { value: `${l}.${h}` }, headName(l, h))),
    ),
  );
}
