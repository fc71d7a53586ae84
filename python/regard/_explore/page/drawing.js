// The picture of one head: pixels and marks.
const plot = { left: 0, top: 0, width: 1, height: 1 };
function sized(canvas, height) {
  const ratio = devicePixelRatio || 1,
    width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return { pen, width, height };
}
function layOut(canvas) {
  const named = Boolean(facts.tokens);
  plot.left = named ? 96 : 64;
  plot.width = Math.max(60, canvas.clientWidth - plot.left - 10);
  const keysNamed = named && plot.width / (state.view[3] - state.view[2]) >= 12,
    top = keysNamed ? 84 : 38;
  plot.top = top;
  // The canvas is as high with names above the keys as without them.
  plot.height =
    (named ? 84 : 38) -
    top +
    clamp(
      plot.width * clamp(facts.q_len / facts.kv_len, 0.3, 1),
      90,
      Math.max(280, innerHeight - 440),
    );
  canvas.dataset.plot = [plot.left, plot.top, plot.width, plot.height].join(" ");
}
function draw(data, tiles) {
  const canvas = byId("picture");
  layOut(canvas);
  const { pen } = sized(canvas, plot.top + plot.height + 8),
    [q0, q1, k0, k1] = state.view;
  const x = (key) => plot.left + ((key - k0) / (k1 - k0)) * plot.width,
    y = (query) => plot.top + ((query - q0) / (q1 - q0)) * plot.height;
  const ratio = devicePixelRatio || 1;
  const fitting = data.levels.filter(
    (each) =>
      (each.width * (k1 - k0)) / facts.kv_len <= 1.01 * plot.width * ratio &&
      (each.height * (q1 - q0)) / facts.q_len <= 1.01 * plot.height * ratio,
  );
  const level = fitting[0] ?? data.levels.at(-1);
  pen.save();
  pen.beginPath();
  pen.rect(plot.left, plot.top, plot.width, plot.height);
  pen.clip();
  pen.imageSmoothingEnabled = false;
  // If single weights could be seen, blocks are pale, so that none is taken for many weights.
  const isClose = !facts.exact && plot.height / (q1 - q0) >= 1.5 && plot.width / (k1 - k0) >= 1.5;
  pen.fillStyle = style("--paper");
  pen.fillRect(plot.left, plot.top, plot.width, plot.height);
  pen.globalAlpha = isClose ? 0.35 : 1;
  pen.drawImage(
    imageOf(data, level),
    (k0 / facts.kv_len) * level.width,
    (q0 / facts.q_len) * level.height,
    ((k1 - k0) / facts.kv_len) * level.width,
    ((q1 - q0) / facts.q_len) * level.height,
    plot.left,
    plot.top,
    plot.width,
    plot.height,
  );
  pen.globalAlpha = 1;
  const put = (image, [first, end, firstKey, endKey]) =>
    pen.drawImage(image, x(firstKey), y(first), x(endKey) - x(firstKey), y(end) - y(first));
  for (const { tile, times } of tiles) {
    const { bounds } = tile,
      [first, end, firstKey, endKey] = bounds;
    pen.fillRect(x(firstKey), y(first), x(endKey) - x(firstKey), y(end) - y(first));
    pen.globalAlpha = isClose && !tile.isExact ? 0.35 : 1;
    put(imageOf(data, tile.levels[times]), bounds);
    pen.globalAlpha = 1;
  }
  if (isClose && !state.other) drawTopKeys(pen, data, x, y);
  for (const { bounds, plane } of data.regions) {
    const [first, end, firstKey, endKey] = bounds;
    if (y(end) - y(first) < 3) continue;
    put(imageOf(data, plane), bounds);
    pen.strokeStyle = style("--mark");
    pen.setLineDash([3, 3]);
    pen.strokeRect(x(firstKey), y(first), x(endKey) - x(firstKey), y(end) - y(first));
    pen.setLineDash([]);
  }
  byId("pixels").textContent = pixelsInWords(level, tiles, data.regions, isClose);
  drawCross(pen, x, y);
  pen.restore();
  pen.strokeStyle = style("--line");
  pen.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
  drawAxes(pen, x, y);
  canvas.setAttribute("aria-label", pictureLabel());
  drawLegend(data);
}
// Describe the pixels, for those who see them.
function pixelsInWords(level, tiles, regions, isClose) {
  if (level.height === facts.q_len && level.width === facts.kv_len)
    return "Each pixel is a weight.";
  const size = (length, pixels) => Math.ceil(length / pixels);
  const block = (queries, keys) =>
    queries * keys === 1 ? "single weights" : `blocks of ${queries} × ${keys}`;
  const kinds = new Set([
    block(size(facts.q_len, level.height), size(facts.kv_len, level.width)),
    ...tiles.map(({ tile: { bounds, levels }, times }) =>
      block(
        size(bounds[1] - bounds[0], levels[times].height),
        size(bounds[3] - bounds[2], levels[times].width),
      ),
    ),
    ...(regions.some(isInView) ? ["single weights"] : []),
  ]);
  const words = `Pixels: ${[...kinds].join(", ")}.`;
  if (!isClose) return words;
  return `${words} Pale: blocks. In full color: single weights${state.other ? "" : " and the top keys of each query"}.`;
}
function pictureLabel() {
  const [q0, q1, k0, k1] = state.view.map(Math.round);
  const what = facts.exact
    ? "each weight"
    : `the ${state.reduce === "max" ? "largest" : "mean"} weight of blocks`;
  return `Picture of ${what} of ${headName(state.layer, state.head)}${minusName()}: queries ${q0} to ${q1 - 1} down, keys ${k0} to ${k1 - 1} across`;
}
// Closer than blocks: the top keys of each query at their places.
function drawTopKeys(pen, data, x, y) {
  const [q0, q1] = state.view,
    height = Math.max(1, y(1) - y(0)),
    width = Math.max(2, x(1) - x(0));
  for (let query = Math.floor(q0); query < Math.min(facts.q_len, Math.ceil(q1)); query++)
    for (const { key, weight } of topKeys(data.rows, query).reverse()) {
      const [red, green, blue] = data.table[data.index(weight, data.largest)];
      pen.fillStyle = `rgb(${red} ${green} ${blue})`;
      pen.fillRect(x(key + 0.5) - width / 2, y(query), width, height);
    }
}
function drawCross(pen, x, y) {
  pen.strokeStyle = style("--mark");
  pen.lineWidth = 1;
  const thick = y(1) - y(0),
    wide = x(1) - x(0),
    top = y(state.query);
  if (thick >= 4) pen.strokeRect(plot.left - 2, top, plot.width + 4, thick);
  else {
    pen.beginPath();
    pen.moveTo(plot.left, top + thick / 2);
    pen.lineTo(plot.left + plot.width, top + thick / 2);
    pen.stroke();
  }
  if (state.key < 0) return;
  const left = x(state.key);
  if (wide >= 4) pen.strokeRect(left, plot.top - 2, wide, plot.height + 4);
  else {
    pen.beginPath();
    pen.moveTo(left + wide / 2, plot.top);
    pen.lineTo(left + wide / 2, plot.top + plot.height);
    pen.stroke();
  }
}
