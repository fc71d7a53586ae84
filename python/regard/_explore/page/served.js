// Tiles of a page that a server sends: computed when they are looked at. Each request is for tiles of
// one row of a level; what has moved out of the view before its turn is not requested.
const SIDE = 64,
  REQUESTS_AT_ONCE = 3,
  MOST_FETCHED = 2048;
const fetched = new Map(); // the arrays of tiles by their names, the last ones used at the end
let requests = [],
  running = 0;

// All tiles of one level that a view contains.
function placesIn(level, [q0, q1, k0, k1]) {
  const [rows, columns] = facts.levels[level];
  const range = (first, end, length, count) => {
    const from = Math.max(0, Math.floor((first * count) / length) - 1),
      to = Math.min(count, Math.ceil((end * count) / length) + 1);
    return Array.from({ length: to - from }, (_, i) => from + i);
  };
  return range(q0, q1, facts.q_len, rows).flatMap((row) =>
    range(k0, k1, facts.kv_len, columns).map((column) => servedTile(level, row, column)),
  );
}
function servedTile(level, row, column) {
  const [rows, columns, isExact] = facts.levels[level];
  const edge = (place, length, count) => Math.floor((place * length) / count);
  const bounds = [
    edge(row, facts.q_len, rows),
    edge(row + 1, facts.q_len, rows),
    edge(column, facts.kv_len, columns),
    edge(column + 1, facts.kv_len, columns),
  ];
  const [height, width] = [bounds[1] - bounds[0], bounds[3] - bounds[2]].map((length) =>
    Math.min(SIDE, length),
  );
  return { level, row, column, bounds, isExact, height, width };
}
// The finest level whose tiles have no more pixels than the screen, and the chosen single weight.
function placesToShow() {
  const last = facts.levels.length - 1,
    fitting = facts.levels.findLastIndex((_, level) => !halvingsOnScreen(servedTile(level, 0, 0)));
  let level = Math.max(0, fitting),
    found = placesIn(level, state.view);
  while (level > 0 && found.length > MOST_FETCHED / 4) found = placesIn(--level, state.view);
  if (state.key >= 0) {
    const isInside = ({ bounds: [a, b, c, d] }) =>
      state.query >= a && state.query < b && state.key >= c && state.key < d;
    const here = [state.query, state.query + 1, state.key, state.key + 1];
    if (level !== last) found.push(...placesIn(last, here).filter(isInside));
  }
  return found;
}
// The tiles that are there; the others are requested, and drawn when they come.
function servedTiles(data) {
  const heads = [[state.layer, state.head]];
  if (state.other) heads.push(state.other.split(".").map(Number));
  const missing = new Map(),
    found = [];
  for (const place of placesToShow()) {
    if (!isWanted(data, place)) continue;
    const { level, row, column } = place;
    const names = heads.map(([layer, head]) => [layer, head, level, row, column].join("."));
    const absent = names.filter((name) => !fetched.has(name));
    for (const name of absent) {
      const [layer, head] = name.split(".");
      const wanted = `tiles?layer=${layer}&head=${head}&level=${level}&row=${row}`;
      missing.set(wanted, [...(missing.get(wanted) ?? []), column]);
    }
    if (!absent.length) found.push(tileFrom(data, place, names));
  }
  requests = [...missing].flatMap(([wanted, columns]) => {
    const parts = [];
    for (let i = 0; i < columns.length; i += SIDE)
      parts.push([wanted, columns.slice(i, i + SIDE)]);
    return parts;
  });
  request();
  return found;
}
function tileFrom(data, place, names) {
  const key = names.join();
  for (const name of names) {
    const arrays = fetched.get(name);
    fetched.delete(name);
    fetched.set(name, arrays);
  }
  const plane = (name) => planeOfTile(place, fetched.get(name));
  if (!data.served.has(key))
    data.served.set(key, {
      ...place,
      read: async () =>
        names.length === 1 ? plane(names[0]) : difference(plane(names[0]), plane(names[1])),
    });
  return data.served.get(key);
}
const underWay = new Set();
function request() {
  document.documentElement.dataset.requests = running || requests.length ? "open" : "answered";
  while (running < REQUESTS_AT_ONCE && requests.length) {
    const [wanted, columns] = requests.shift(),
      url = wanted + columns.map((column) => `&column=${column}`).join("");
    if (underWay.has(url)) continue;
    underWay.add(url);
    running++;
    answer(url, wanted, columns)
      .catch((error) => {
        requests = [];
        byId("trouble").hidden = false;
        byId("trouble").textContent =
          `Finer pictures are missing: the server of this page does not answer (${error.message}).`;
      })
      .finally(() => {
        underWay.delete(url);
        running--;
        request();
      });
  }
}
async function answer(url, wanted, columns) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(await response.text());
  const [layer, head, level, row] = [...new URLSearchParams(wanted.slice(6)).values()];
  const tiles = await response.json();
  for (const [number, [rest, text]] of tiles.entries()) {
    const { bounds } = servedTile(Number(level), Number(row), columns[number]);
    const arrays = await arraysIn(text, describedTile(bounds, rest));
    fetched.set([layer, head, level, row, columns[number]].join("."), arrays);
  }
  while (fetched.size > MOST_FETCHED) fetched.delete(fetched.keys().next().value);
  byId("trouble").hidden = true;
  render();
}
