// Keys: each has a line in the help.
function stepped(name, step, length) {
  const next = state[name] < 0 ? (step > 0 ? 0 : length - 1) : state[name] + step;
  change({ [name]: clamp(next, 0, length - 1) });
}
function otherHead(step) {
  const count = facts.layers[state.layer].heads.length;
  change({ head: (state.head + step + count) % count });
}
function otherLayer(step) {
  const count = facts.layers.length;
  let layer = state.layer;
  do layer = (layer + step + count) % count;
  while (!facts.layers[layer].heads.length);
  change({ layer, head: Math.min(state.head, facts.layers[layer].heads.length - 1) });
}
function nextTopKey() {
  const tops = current ? topKeys(current.rows, state.query) : [];
  if (tops.length)
    change({ key: tops[(tops.findIndex((each) => each.key === state.key) + 1) % tops.length].key });
}
function leave() {
  if (state.find) byId("find").value = "";
  change(state.find ? { find: "" } : state.other ? { other: "" } : { key: -1 });
  document.activeElement?.blur();
}
const zoomed = (factor) => {
  const [q0, q1, k0, k1] = state.view,
    at = (place, first, end) => clamp((place + 0.5 - first) / (end - first), 0, 1);
  zoom(factor, at(state.query, q0, q1), state.key < 0 ? 0.5 : at(state.key, k0, k1));
  render();
};
const page = () => Math.max(1, Math.round(0.8 * (state.view[1] - state.view[0])));
const KEYS = [
  [
    ["ArrowUp", "ArrowDown"],
    "↑ ↓",
    "the previous, next query; 10 queries with Shift",
    (event) =>
      stepped("query", (event.key === "ArrowUp" ? -1 : 1) * (event.shiftKey ? 10 : 1), facts.q_len),
  ],
  [
    ["ArrowLeft", "ArrowRight"],
    "← →",
    "the previous, next key; 10 keys with Shift",
    (event) =>
      stepped(
        "key",
        (event.key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 10 : 1),
        facts.kv_len,
      ),
  ],
  [
    ["PageUp", "PageDown"],
    "Page Up, Page Down",
    "a screen of queries up, down",
    (event) => stepped("query", event.key === "PageUp" ? -page() : page(), facts.q_len),
  ],
  [
    ["Home", "End"],
    "Home, End",
    "the first, the last query",
    (event) => change({ query: event.key === "Home" ? 0 : facts.q_len - 1 }),
  ],
  [["t"], "t", "the next of the query's top keys", nextTopKey],
  [
    ["h", "H"],
    "h H",
    "the next, the previous head",
    (event) => otherHead(event.key === "h" ? 1 : -1),
  ],
  [
    ["l", "L"],
    "l L",
    "the next, the previous layer",
    (event) => otherLayer(event.key === "l" ? 1 : -1),
  ],
  [
    ["+", "=", "-", "0"],
    "+ − 0",
    "zoom in, zoom out, show all",
    (event) =>
      event.key === "0" ? change({ view: whole() }) : zoomed(event.key === "-" ? 2 : 0.5),
  ],
  [
    ["m"],
    "m",
    "largest or mean weight",
    () => facts.exact || change({ reduce: state.reduce === "max" ? "mean" : "max" }),
  ],
  [
    ["s"],
    "s",
    "logarithmic or linear colors",
    () => change({ scale: state.scale === "log" ? "linear" : "log" }),
  ],
  [
    ["c"],
    "c",
    "compare: show later heads minus this one; press again to end",
    () => change({ other: state.other ? "" : `${state.layer}.${state.head}` }),
  ],
  [
    ["g"],
    "g",
    "go to the grid of heads, where the arrow keys select",
    () => cells.get(`${state.layer}.${state.head}`).focus(),
  ],
  [["p"], "p", "go to the picture", () => byId("picture").focus()],
  [
    ["/"],
    "/",
    "find a token; Enter and Shift Enter step through the matches",
    () => byId("find").focus(),
  ],
  [["?"], "?", "this help", () => byId("help").showModal()],
  [["Escape"], "Esc", "leave: the search, the comparison, the key", leave],
];
function listen() {
  const actions = new Map(
    KEYS.flatMap(([names, , , action]) => names.map((name) => [name, action])),
  );
  byId("keys").tBodies[0].replaceChildren(
    ...KEYS.map(([, names, says]) =>
      element("tr", {}, element("td", {}, element("kbd", {}, names)), element("td", {}, says)),
    ),
  );
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest?.("input, select, textarea, dialog");
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    if (field && !(event.key === "Escape" && field.id === "find")) return;
    const action = actions.get(event.key);
    if (!action) return;
    event.preventDefault();
    action(event);
  });
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  byId("zoom-in").addEventListener("click", () => zoomed(0.5));
  byId("zoom-out").addEventListener("click", () => zoomed(2));
  byId("zoom-all").addEventListener("click", () => change({ view: whole() }));
  for (const name of ["reduce", "scale", "other"])
    byId(name).addEventListener("change", () => change({ [name]: byId(name).value }));
  for (const [name, length] of [
    ["query", facts.q_len],
    ["key", facts.kv_len],
  ]) {
    byId(name).max = length - 1;
    byId(name).addEventListener("change", () => {
      const value = Math.trunc(Number(byId(name).value));
      if (byId(name).value !== "") change({ [name]: clamp(value, 0, length - 1) });
    });
  }
  byId("find").addEventListener("input", () => change({ find: byId("find").value }));
  byId("find").addEventListener("keydown", (event) => {
    if (event.key === "Enter") nextMatch(event.shiftKey ? -1 : 1);
  });
}
