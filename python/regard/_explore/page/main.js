// All updates: `change` changes the state, and `render` draws the page, once per frame.
let isDrawing = false,
  isNew = false,
  thumbnails = "";
function change(news) {
  Object.assign(state, news);
  if ("query" in news || "key" in news) follow();
  render();
}
function render() {
  isNew = true;
  if (isDrawing) return;
  isDrawing = true;
  const main = document.querySelector("main");
  main.ariaBusy = "true";
  requestAnimationFrame(async () => {
    try {
      while (isNew) {
        // changes while a head is read are drawn after it, never before
        isNew = false;
        await show();
      }
    } catch (error) {
      byId("trouble").hidden = false;
      byId("trouble").textContent = `This page cannot be shown: ${error.message}`;
      throw error;
    } finally {
      isDrawing = false;
      main.ariaBusy = "false";
    }
  });
}
async function show() {
  for (const name of ["ofQueries", "ofKeys", "ofHeads"]) state[name] ||= defaults[name];
  const wanted = `${state.reduce} ${isDark.matches}`;
  if (thumbnails !== wanted) {
    thumbnails = wanted;
    await drawThumbnails();
    document.documentElement.dataset.overview = "drawn";
  }
  markCells();
  writeAddress();
  const data = await prepared();
  for (const [id, name] of [
    ["reduce", "reduce"],
    ["scale", "scale"],
    ["other", "other"],
    ["query-statistic", "ofQueries"],
    ["key-statistic", "ofKeys"],
    ["head-statistic", "ofHeads"],
    ["query", "query"],
  ])
    byId(id).value = state[name];
  byId("key").value = state.key < 0 ? "" : state.key;
  if (document.activeElement !== byId("find")) byId("find").value = state.find;
  const title = headName(state.layer, state.head);
  byId("head-title").textContent = title[0].toUpperCase() + title.slice(1) + minusName();
  byId("head-title").title = headName(state.layer, state.head, "name");
  layOut(byId("picture"));
  draw(data, await tilesInView(data));
  byId("readout").textContent = state.key < 0 ? "" : readout(data, state.query, state.key);
  showRow(data);
  drawCharts(data);
  if (tokensOfKeys) {
    search();
    markMatches();
  }
  document.documentElement.dataset.shown = location.hash;
}
function begin() {
  const heads = cellCount(),
    many = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
  byId("about").textContent = [
    many(facts.layers.length, "layer"),
    many(heads, "head"),
    `${facts.q_len} ${facts.q_len === 1 ? "query" : "queries"} × ${many(facts.kv_len, "key")}`,
    facts.options,
  ]
    .filter(Boolean)
    .join(" · ");
  byId("reduce-label").hidden = facts.exact;
  byId("search").hidden = !tokensOfKeys;
  if (!tokensOfKeys) byId("beside-key").textContent = "distance";
  fillChoices();
  makeGrid();
  readAddress();
  listen();
  pointers();
  isDark.addEventListener("change", render);
  addEventListener("resize", render);
  addEventListener("hashchange", () => {
    if (location.hash !== written) {
      readAddress();
      render();
    }
  });
  render();
}
const cellCount = () => facts.layers.reduce((sum, layer) => sum + layer.heads.length, 0);
begin();
