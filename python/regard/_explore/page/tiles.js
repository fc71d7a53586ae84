// Tiles: finer pictures of parts of a head, read when they are on the screen.
function tileOf(place, entry, number) {
  const [first, end, firstKey, endKey, ...rest] = entry,
    bounds = entry.slice(0, 4),
    isExact = rest.length === 1,
    [height, width] = isExact ? [end - first, endKey - firstKey] : rest;
  const described = isExact
    ? [["weights", "f16", [height, width], rest[0]]]
    : ["max", "mean"].map((plane) => [plane, "u8", rest, 0]);
  const id = `tile-${place}.${number}`,
    name = [bounds, height, width].join();
  return { bounds, height, width, isExact, name, id, described };
}
async function readTile({ id, described, isExact }) {
  return planeIn(await arraysOf(id, described), isExact);
}
// The tiles of the chosen head, or those that it shares with the head that is subtracted. The
// coarser ones come first, so that finer ones are drawn over them.
function tilesOf(layer, head, other) {
  const of = (l, h) =>
    headFacts(l, h).tiles.map((entry, number) => tileOf(`${l}.${h}`, entry, number));
  let found = of(layer, head).map((tile) => ({ ...tile, read: () => readTile(tile) }));
  if (other) {
    const theirs = new Map(of(...other).map((tile) => [tile.name, tile]));
    found = found.flatMap((tile) => {
      const match = theirs.get(tile.name);
      if (!match) return [];
      return [{ ...tile, read: async () => difference(await tile.read(), await readTile(match)) }];
    });
  }
  const area = ({ bounds: [a, b, c, d], height, width }) => ((b - a) * (d - c)) / (height * width);
  return found.sort((a, b) => area(b) - area(a));
}
// The tiles to draw, each read and at the resolution of the screen.
async function tilesInView(data) {
  const shown = [];
  for (const tile of data.tiles) {
    // The chosen weight is read from a tile even where none is drawn.
    if (!contains(tile, state.query, state.key) && !isFinerInView(data, tile)) continue;
    const times = halvingsOnScreen(tile);
    tile.levels ??= [await tile.read()];
    while (tile.levels.length <= times) tile.levels.push(coarser(tile.levels.at(-1), isMean()));
    if (isFinerInView(data, tile)) shown.push({ tile, times });
  }
  return shown;
}
// How often a tile must be halved to have no more pixels than its part of the screen.
function halvingsOnScreen({ bounds: [first, end, firstKey, endKey], height, width }) {
  const [q0, q1, k0, k1] = state.view,
    ratio = devicePixelRatio || 1;
  const times = (pixels, share, size) =>
    Math.ceil(Math.log2(pixels / (1.01 * share * size * ratio)) - 1e-9);
  return Math.max(
    0,
    times(height, (end - first) / (q1 - q0), plot.height),
    times(width, (endKey - firstKey) / (k1 - k0), plot.width),
  );
}
// Whether a tile is in the view, and has more pixels there than the picture.
function isFinerInView({ plane }, tile) {
  const [first, end, firstKey, endKey] = tile.bounds,
    times = halvingsOnScreen(tile);
  return (
    isInView(tile) &&
    (tile.height / 2 ** times > (1.2 * plane.height * (end - first)) / facts.q_len ||
      tile.width / 2 ** times > (1.2 * plane.width * (endKey - firstKey)) / facts.kv_len)
  );
}
// The finest picture of a place that is there: a region, a tile or the whole picture.
function finestAt(data, query, key) {
  const region = data.regions.find((each) => contains(each, query, key));
  if (region) return { ...region, isExact: true, digits: 3 };
  const tile = data.tiles.findLast((each) => each.levels && contains(each, query, key));
  return tile
    ? { bounds: tile.bounds, plane: tile.levels[0], isExact: tile.isExact, digits: DIGITS }
    : { bounds: whole(), plane: data.plane, isExact: facts.exact, digits: DIGITS };
}
// The value at a place, and the number of queries and keys that it stands for.
function valueAt({ bounds: [first, end, firstKey, endKey], plane }, query, key) {
  const along = (place, begin, length, size) => {
    const at = Math.min(size - 1, pixelOf(place - begin, length, size));
    const edge = (pixel) => Math.floor((pixel * length) / size);
    return [at, edge(at + 1) - edge(at)];
  };
  const [row, queries] = along(query, first, end - first, plane.height),
    [column, keys] = along(key, firstKey, endKey - firstKey, plane.width);
  return { value: plane.values[row * plane.width + column], queries, keys };
}
// Describe one place in the picture in words.
function readout(data, query, key) {
  const found = finestAt(data, query, key),
    { value, queries, keys } = valueAt(found, query, key);
  const place = `Query ${query}${quoted(queryText(query))}, key ${key}${quoted(keyText(key))}`;
  if (found.isExact)
    return `${place}: ${state.other ? "difference" : "weight"} ${number(value, found.digits)}`;
  const of = state.reduce === "max" ? "largest weight" : "mean weight",
    says = value === 0 && !state.other ? "at most 1e−6" : number(value, 2);
  const among = topKeys(data.rows, query).find((each) => each.key === key);
  const exact = among && !state.other ? `; weight ${number(among.weight, DIGITS)}` : "";
  return `${place}${exact}; ${state.other ? `difference of the ${of}s` : of} of the block (${queries} × ${keys}): ${says}`;
}
// The pixel of a query or key: pixel i begins at i * length / size, rounded down.
const pixelOf = (place, length, size) => Math.ceil(((place + 1) * size) / length) - 1;
