// All heads at a glance: a grid in which one cell at a time takes the focus by Tab.
const cells = new Map();
function makeGrid() {
  const grid = byId("grid");
  const most = Math.max(...facts.layers.map((layer) => layer.heads.length));
  const several = facts.layers.length > 1;
  // The heads of a layer are on one line if that leaves them large enough to see.
  const room = byId("overview").clientWidth - 62;
  const size = several ? clamp(Math.floor(room / most) - 4, 14, 64) : most > 24 ? 40 : 68;
  if (several) grid.className = "layers";
  // Long labels have lines of their own, since their ends may be all that differs.
  if (facts.layers.some((layer) => layer.label.length > 5)) grid.classList.add("long");
  facts.layers.forEach((layer, l) => {
    const row = element("div", { role: "row", class: "layer" });
    if (several)
      row.append(
        element(
          "div",
          { role: "rowheader", title: layer.name, "aria-label": `layer ${layer.name}` },
          shown(layer.label, 200),
        ),
      );
    layer.heads.forEach((head, h) => {
      const canvas = element("canvas", { "aria-hidden": "true" });
      canvas.style.width = canvas.style.height = `${size}px`;
      const cell = element("div", { role: "gridcell", class: "cell", tabindex: "-1" }, canvas);
      cell.style.width = `${size}px`;
      if (size >= 40)
        cell.append(
          element("span", { class: "name", "data-text": head.name }),
          element("span", { class: "value" }),
        );
      cell.addEventListener("click", () => change({ layer: l, head: h }));
      cell.addEventListener("focus", () => change({ layer: l, head: h }));
      cells.set(`${l}.${h}`, cell);
      row.append(cell);
    });
    grid.append(row);
  });
  grid.addEventListener("keydown", (event) => {
    if (!/^(Arrow|Home$|End$)/.test(event.key)) return;
    event.preventDefault();
    event.stopPropagation(); // also at the edges, where the document would move the query
    neighbor(event.key)?.focus();
  });
}
function neighbor(key) {
  const all = [...cells.values()],
    at = all.indexOf(cells.get(`${state.layer}.${state.head}`));
  const steps = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 };
  if (key in steps) return all[steps[key]];
  // The nearest cell on the line above or below, with the current line breaks.
  const { left, top } = all[at].getBoundingClientRect(),
    sign = key === "ArrowUp" ? -1 : 1;
  const lines = all
    .map((cell) => ({ cell, box: cell.getBoundingClientRect() }))
    .filter(({ box }) => sign * (box.top - top) > 2);
  lines.sort(
    (a, b) =>
      sign * (a.box.top - b.box.top) || Math.abs(a.box.left - left) - Math.abs(b.box.left - left),
  );
  return lines[0]?.cell;
}
async function drawThumbnails() {
  const {
    values,
    shape: [, height, width],
  } = (await decodedOnce("thumbnails", facts.overview)).get("levels");
  const table = colors().sequential;
  let number = 0;
  for (const cell of cells.values()) {
    const canvas = cell.firstChild;
    canvas.width = width;
    canvas.height = height;
    const image = new ImageData(width, height),
      first = (2 * number++ + (state.reduce === "mean" && !facts.exact)) * height * width;
    for (let i = 0; i < height * width; i++)
      image.data.set([...table[values[first + i]], 255], 4 * i);
    canvas.getContext("2d").putImageData(image, 0, 0);
  }
}
function markCells() {
  for (const [place, cell] of cells) {
    const [l, h] = place.split(".").map(Number),
      value = headFacts(l, h).statistics[state.ofHeads];
    const chosen = l === state.layer && h === state.head,
      says = value === undefined || value === null ? "–" : number(value);
    cell.setAttribute("aria-selected", chosen);
    cell.tabIndex = chosen ? 0 : -1;
    cell.classList.toggle("other", place === state.other);
    cell.setAttribute("aria-label", `${headName(l, h)}: ${LABELS[state.ofHeads] ?? ""} ${says}`);
    cell.title = `${headName(l, h, "name")}\n${LABELS[state.ofHeads] ?? ""}: ${says}`;
    const last = cell.lastChild;
    if (last.className === "value") last.dataset.text = says;
  }
}
