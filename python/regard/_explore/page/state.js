// The state of the page, which its address contains too.
const byId = (id) => document.getElementById(id);
const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
const whole = () => [0, facts.q_len, 0, facts.kv_len];
const state = {
  layer: 0,
  head: 0,
  query: facts.q_len - 1,
  key: -1,
  view: whole(),
  reduce: "max",
  scale: "log",
  other: "",
  ofQueries: "",
  ofKeys: "",
  ofHeads: "",
  find: "",
};
const SHORT = {
  layer: "l",
  head: "h",
  query: "q",
  key: "k",
  view: "v",
  reduce: "m",
  scale: "s",
  other: "c",
  ofQueries: "t",
  ofKeys: "u",
  ofHeads: "w",
  find: "f",
};
const defaults = { ...state };
// The layer and head that are subtracted, if any.
const subtracted = () => (state.other ? state.other.split(".").map(Number) : null);
// Whether the pixels of coarser levels are means: there is no largest of differences.
const isMean = () => Boolean(state.other) || state.reduce === "mean";
const isInView = ({ bounds: [first, end, firstKey, endKey] }) => {
  const [q0, q1, k0, k1] = state.view;
  return first < q1 && end > q0 && firstKey < k1 && endKey > k0;
};
const contains = ({ bounds: [first, end, firstKey, endKey] }, query, key) =>
  query >= first && query < end && key >= firstKey && key < endKey;

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, defaults, { view: whole() });
  const integer = (name, least, most) => {
    const value = Number(given.get(SHORT[name]) ?? NaN);
    if (Number.isInteger(value)) state[name] = clamp(value, least, most);
  };
  integer("layer", 0, facts.layers.length - 1);
  if (!facts.layers[state.layer].heads.length)
    state.layer = facts.layers.findIndex((layer) => layer.heads.length);
  integer("head", 0, Infinity);
  state.head = Math.min(state.head, facts.layers[state.layer].heads.length - 1);
  integer("query", 0, facts.q_len - 1);
  integer("key", -1, facts.kv_len - 1);
  const view = (given.get("v") ?? "").split(",").map(Number);
  if (view.length === 4 && view.every(Number.isFinite)) setView(...view);
  const choice = (name, choices) => {
    if (choices.includes(given.get(SHORT[name]))) state[name] = given.get(SHORT[name]);
  };
  choice("reduce", ["max", "mean"]);
  choice("scale", ["log", "linear"]);
  choice(
    "other",
    facts.layers.flatMap((layer, l) => layer.heads.map((_, h) => `${l}.${h}`)),
  );
  for (const name of ["ofQueries", "ofKeys", "ofHeads"]) choice(name, Object.keys(LABELS));
  state.find = given.get("f") ?? "";
}
let written = location.hash;
function writeAddress() {
  const words = new URLSearchParams();
  for (const [name, short] of Object.entries(SHORT)) {
    const value =
      name === "view"
        ? state.view.map((x) => Math.round(x * 100) / 100).join(",")
        : String(state[name]);
    const usual = name === "view" ? whole().join(",") : String(defaults[name]);
    if (value !== usual) words.set(short, value);
  }
  written = words.size ? `#${words}` : "";
  if (location.hash === written) return;
  try {
    history.replaceState(null, "", written || "#");
  } catch {
    // A page inside a notebook has no separate address.
  }
}
function setView(q0, q1, k0, k1) {
  const fitted = (first, end, length) => {
    const size = clamp(end - first, Math.min(4, length), length);
    const start = clamp(first + (end - first - size) / 2, 0, length - size);
    return [start, start + size];
  };
  state.view = [...fitted(q0, q1, facts.q_len), ...fitted(k0, k1, facts.kv_len)];
}
function zoom(factor, atQuery = 0.5, atKey = 0.5) {
  const [q0, q1, k0, k1] = state.view;
  const rows = (q1 - q0) * factor,
    columns = (k1 - k0) * factor;
  const q = q0 + atQuery * (q1 - q0),
    k = k0 + atKey * (k1 - k0);
  setView(
    q - atQuery * rows,
    q + (1 - atQuery) * rows,
    k - atKey * columns,
    k + (1 - atKey) * columns,
  );
}
// Move the view, if necessary, so that it contains the chosen query and key.
function follow() {
  let [q0, q1, k0, k1] = state.view;
  const moved = (first, end, place) =>
    place < first ? place - first : place + 1 > end ? place + 1 - end : 0;
  const down = moved(q0, q1, state.query),
    across = state.key < 0 ? 0 : moved(k0, k1, state.key);
  setView(q0 + down, q1 + down, k0 + across, k1 + across);
}
