// The picture of one head: pixels, axes, marks, and what the pointer does.
const plot = { left: 0, top: 0, width: 1, height: 1 };
function sized(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return { pen, width, height };
}
function ticks(first, end, most) {
  const rough = (end - first) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? 1), found = [];
  for (let value = Math.ceil(first / step) * step; value < end; value += step) found.push(value);
  return found;
}
function layOut(canvas) {
  const named = Boolean(facts.tokens);
  plot.left = named ? 96 : 54;
  plot.width = Math.max(60, canvas.clientWidth - plot.left - 10);
  const keysNamed = named && plot.width / (state.view[3] - state.view[2]) >= 12, top = keysNamed ? 84 : 38;
  plot.top = top;
  // The canvas is as high with names above the keys as without them.
  plot.height = (named ? 84 : 38) - top + clamp(plot.width * clamp(facts.q_len / facts.kv_len, 0.3, 1), 90, Math.max(280, innerHeight - 440));
  canvas.dataset.plot = [plot.left, plot.top, plot.width, plot.height].join(" ");
}
function draw(data) {
  const canvas = byId("picture");
  layOut(canvas);
  const { pen } = sized(canvas, plot.top + plot.height + 8), [q0, q1, k0, k1] = state.view;
  const x = (key) => plot.left + ((key - k0) / (k1 - k0)) * plot.width, y = (query) => plot.top + ((query - q0) / (q1 - q0)) * plot.height;
  const ratio = devicePixelRatio || 1;
  const fitting = data.levels.filter((each) => (each.width * (k1 - k0)) / facts.kv_len <= 1.01 * plot.width * ratio && (each.height * (q1 - q0)) / facts.q_len <= 1.01 * plot.height * ratio);
  const level = fitting[0] ?? data.levels.at(-1);
  pen.save();
  pen.beginPath();
  pen.rect(plot.left, plot.top, plot.width, plot.height);
  pen.clip();
  pen.imageSmoothingEnabled = false;
  // Where single weights could be seen, blocks are pale, lest one is taken for many weights.
  const isClose = !facts.exact && plot.height / (q1 - q0) >= 1.5;
  pen.fillStyle = style("--paper");
  pen.fillRect(plot.left, plot.top, plot.width, plot.height);
  pen.globalAlpha = isClose ? 0.35 : 1;
  pen.drawImage(imageOf(data, level), (k0 / facts.kv_len) * level.width, (q0 / facts.q_len) * level.height, ((k1 - k0) / facts.kv_len) * level.width, ((q1 - q0) / facts.q_len) * level.height, plot.left, plot.top, plot.width, plot.height);
  pen.globalAlpha = 1;
  for (const { bounds: [first, end, firstKey, endKey], plane } of data.regions) {
    if (y(end) - y(first) < 3) continue;
    pen.drawImage(imageOf(data, plane), x(firstKey), y(first), x(endKey) - x(firstKey), y(end) - y(first));
    pen.strokeStyle = style("--mark");
    pen.setLineDash([3, 3]);
    pen.strokeRect(x(firstKey), y(first), x(endKey) - x(firstKey), y(end) - y(first));
    pen.setLineDash([]);
  }
  if (isClose && !state.other) drawTopKeys(pen, data, x, y);
  byId("close").hidden = !isClose;
  byId("close").textContent = state.other ? "Pale: blocks." : "Pale: blocks. In full colour: the top keys of each query.";
  drawCross(pen, x, y);
  pen.restore();
  pen.strokeStyle = style("--line");
  pen.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.width + 1, plot.height + 1);
  drawAxes(pen, x, y);
  canvas.setAttribute("aria-label", pictureLabel());
  drawLegend(data);
}
function pictureLabel() {
  const [q0, q1, k0, k1] = state.view.map(Math.round);
  const what = facts.exact ? "each weight" : `the ${state.reduce === "max" ? "largest" : "mean"} weight of blocks`;
  const minus = state.other ? ` minus ${headName(...state.other.split(".").map(Number))}` : "";
  return `Picture of ${what} of ${headName(state.layer, state.head)}${minus}: queries ${q0} to ${q1 - 1} down, keys ${k0} to ${k1 - 1} across`;
}
// Closer than blocks: the top keys of each query where they are.
function drawTopKeys(pen, data, x, y) {
  const [q0, q1] = state.view, height = Math.max(1, y(1) - y(0)), width = Math.max(2, x(1) - x(0));
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
  const thick = y(1) - y(0), wide = x(1) - x(0), top = y(state.query);
  if (thick >= 4) pen.strokeRect(plot.left - 2, top, plot.width + 4, thick);
  else { pen.beginPath(); pen.moveTo(plot.left, top + thick / 2); pen.lineTo(plot.left + plot.width, top + thick / 2); pen.stroke(); }
  if (state.key < 0) return;
  const left = x(state.key);
  if (wide >= 4) pen.strokeRect(left, plot.top - 2, wide, plot.height + 4);
  else { pen.beginPath(); pen.moveTo(left + wide / 2, plot.top); pen.lineTo(left + wide / 2, plot.top + plot.height); pen.stroke(); }
}
function drawAxes(pen, x, y) {
  const [q0, q1, k0, k1] = state.view, tall = plot.height / (q1 - q0), wide = plot.width / (k1 - k0);
  pen.fillStyle = style("--soft");
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const rowsNamed = queryText(0) !== undefined && tall >= 12, keysNamed = keyText(0) !== undefined && wide >= 12;
  const clipped = (text, most) => { let cut = text; while (cut.length > 1 && pen.measureText(cut).width > most) cut = cut.slice(0, -2) + "…"; return cut; };
  for (const query of rowsNamed ? ticks(q0, q1, q1 - q0) : ticks(q0 - 0.5, q1 - 0.5, plot.height / 40))
    if (query >= 0) pen.fillText(rowsNamed ? clipped(shown(queryText(query), 18), plot.left - 12) : query, plot.left - 6, y(query + 0.5));
  for (const key of keysNamed ? ticks(k0, k1, k1 - k0) : ticks(k0 - 0.5, k1 - 0.5, plot.width / 70)) {
    if (key < 0) continue;
    pen.save();
    pen.translate(x(key + 0.5), plot.top - 6);
    if (keysNamed) { pen.rotate(-Math.PI / 2); pen.textAlign = "left"; pen.fillText(clipped(shown(keyText(key), 18), plot.top - 22), 0, 0); }
    else { pen.textAlign = "center"; pen.textBaseline = "bottom"; pen.fillText(key, 0, 0); }
    pen.restore();
  }
  pen.fillStyle = style("--ink");
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillText("keys →", plot.left, keysNamed ? 2 : plot.top - 34);
  pen.fillText("queries ↓", 2, plot.top - 16);
}
function drawLegend(data) {
  const { pen, width } = sized(byId("legend"), 40), left = 24, span = width - 36, isLog = state.scale === "log";
  for (let i = 0; i < 255; i++) {
    pen.fillStyle = `rgb(${data.table[i].join(" ")})`;
    pen.fillRect(left + (i * span) / 255, 4, span / 255 + 0.7, 12);
  }
  pen.strokeStyle = style("--line");
  pen.strokeRect(left, 4, span, 12);
  pen.fillStyle = style("--soft");
  pen.textAlign = "center";
  pen.textBaseline = "top";
  const powers = isLog ? (state.other ? [-1, -0.01, 0, 0.01, 1] : [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1]) : state.other ? [-1, -0.5, 0, 0.5, 1].map((s) => s * data.largest) : [0, 0.25, 0.5, 0.75, 1].map((s) => s * data.largest);
  for (const value of powers) {
    const at = data.index(value, data.largest), labelled = (value === 1e-6 ? "≤" : "") + number(value, 2).replace(/(\.\d*?)0+(?=e|$)/, "$1").replace(/\.(?=e|$)/, "");
    pen.fillText(labelled, left + ((at + 0.5) * span) / 255, 20);
  }
  byId("legend").setAttribute("aria-label", `Colour scale, ${isLog ? "logarithmic" : "linear"}, from ${number(powers[0], 2)} to ${number(powers.at(-1), 2)}`);
}
function cellAt(event) {
  const box = byId("picture").getBoundingClientRect(), [q0, q1, k0, k1] = state.view;
  const down = (event.clientY - box.top - plot.top) / plot.height, across = (event.clientX - box.left - plot.left) / plot.width;
  const inside = down >= 0 && down < 1 && across >= 0 && across < 1;
  return { inside, down, across, query: clamp(Math.floor(q0 + down * (q1 - q0)), 0, facts.q_len - 1), key: clamp(Math.floor(k0 + across * (k1 - k0)), 0, facts.kv_len - 1) };
}
function readout(data, query, key) {
  const { plane } = data, row = Math.min(plane.height - 1, pixelOf(query, facts.q_len, plane.height)), column = Math.min(plane.width - 1, pixelOf(key, facts.kv_len, plane.width));
  const own = data.regions.find(({ bounds: [first, end, firstKey, endKey] }) => query >= first && query < end && key >= firstKey && key < endKey);
  const value = own ? own.plane.values[(query - own.bounds[0]) * own.plane.width + key - own.bounds[2]] : plane.values[row * plane.width + column];
  const place = `Query ${query}${quoted(queryText(query))}, key ${key}${quoted(keyText(key))}`;
  if (own || facts.exact) return `${place}: ${state.other ? "difference" : "weight"} ${number(value)}`;
  const of = state.reduce === "max" ? "largest weight" : "mean weight", says = value === 0 && !state.other ? "at most 1e−6" : number(value, 2);
  const among = topKeys(data.rows, query).find((each) => each.key === key);
  const exact = among && !state.other ? `; weight ${number(among.weight, DIGITS)}` : "";
  return `${place}${exact}; ${state.other ? `difference of the ${of}s` : of} of the block ${says}`;
}
// The pixel of a query or key: pixel i holds those from i * length / size on, rounded down.
const pixelOf = (place, length, size) => Math.ceil(((place + 1) * size) / length) - 1;

function pointers() {
  const canvas = byId("picture");
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); held = { x: event.clientX, y: event.clientY, view: [...state.view], moved: false }; });
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (!held) { if (cell.inside && current) byId("readout").textContent = readout(current, cell.query, cell.key); return; }
    const dx = event.clientX - held.x, dy = event.clientY - held.y;
    held.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
    if (!held.moved) return;
    const [q0, q1, k0, k1] = held.view, down = (-dy / plot.height) * (q1 - q0), across = (-dx / plot.width) * (k1 - k0);
    setView(q0 + down, q1 + down, k0 + across, k1 + across);
    render();
  });
  canvas.addEventListener("pointerup", (event) => {
    const cell = cellAt(event);
    if (held && !held.moved && cell.inside) change({ query: cell.query, key: cell.key });
    held = null;
  });
  canvas.addEventListener("wheel", (event) => {
    const cell = cellAt(event);
    if (!cell.inside) return;
    event.preventDefault();
    zoom(1.0015 ** clamp(event.deltaY, -400, 400), cell.down, cell.across);
    render();
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => { const cell = cellAt(event); zoom(0.4, cell.down, cell.across); render(); });
}
