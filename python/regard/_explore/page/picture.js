// One head's weights as planes of numbers, and their coarser levels.
function coarser({ values, height, width }, means) {
  const rows = Math.ceil(height / 2),
    columns = Math.ceil(width / 2),
    result = new Float32Array(rows * columns);
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) {
      let sum = 0,
        count = 0,
        largest = -Infinity;
      for (let y = 2 * r; y < Math.min(2 * r + 2, height); y++)
        for (let x = 2 * c; x < Math.min(2 * c + 2, width); x++) {
          const value = values[y * width + x];
          sum += value;
          count++;
          if (value > largest || value !== value)
            largest = value !== value || largest !== largest ? NaN : value;
        }
      result[r * columns + c] = means ? sum / count : sum !== sum ? NaN : largest;
    }
  return { values: result, height: rows, width: columns };
}
// The plane of weights among decoded arrays, or of levels as weights.
function planeIn(arrays, isExact) {
  const { values, shape } = arrays.get(isExact ? "weights" : state.reduce),
    [height, width] = shape;
  return {
    values: isExact ? values : Float32Array.from(values, (level) => levelTable[level]),
    height,
    width,
  };
}
const planeOf = async (layer, head) => planeIn(await mapOf(layer, head), facts.exact);
async function regionsOf(layer, head) {
  const found = [];
  for (const [name, { values, shape }] of await mapOf(layer, head)) {
    const [word, ...bounds] = name.split(" ");
    if (word === "region")
      found.push({
        bounds: bounds.map(Number),
        plane: { values, height: shape[0], width: shape[1] },
      });
  }
  return found;
}
function difference(a, b) {
  return { ...a, values: a.values.map((value, i) => value - b.values[i]) };
}
const largestOf = (values) =>
  values.reduce((most, value) => (Math.abs(value) > most ? Math.abs(value) : most), 0);

function painted({ values, height, width }, table, index, largest) {
  const canvas = new OffscreenCanvas(width, height),
    image = new ImageData(width, height),
    { data } = image;
  for (let i = 0; i < values.length; i++) {
    const [red, green, blue] = table[index(values[i], largest)];
    data[4 * i] = red;
    data[4 * i + 1] = green;
    data[4 * i + 2] = blue;
    data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
// Everything that drawing needs for the chosen head; kept until another head is chosen.
let current = null;
async function prepared() {
  const wanted = [
    state.layer,
    state.head,
    state.other,
    state.reduce,
    state.scale,
    isDark.matches,
  ].join("/");
  if (current?.wanted === wanted) return current;
  let plane = await planeOf(state.layer, state.head),
    regions = await regionsOf(state.layer, state.head);
  const rows = await rowsOf(state.layer, state.head);
  const other = subtracted();
  if (other) {
    const theirs = await regionsOf(...other);
    plane = difference(plane, await planeOf(...other));
    regions = regions.flatMap((region) => {
      const match = theirs.find((each) => String(each.bounds) === String(region.bounds));
      return match ? [{ ...region, plane: difference(region.plane, match.plane) }] : [];
    });
  }
  const table = state.other ? colors().diverging : colors().sequential,
    index = state.other ? differenceIndex : weightIndex;
  const largest = largestOf(plane.values),
    levels = [plane];
  while (Math.max(levels.at(-1).height, levels.at(-1).width) > 128)
    levels.push(coarser(levels.at(-1), isMean()));
  const paint = (each) => painted(each, table, index, largest);
  return (current = {
    wanted,
    plane,
    rows,
    regions,
    table,
    index,
    largest,
    levels: levels.map((each) => ({ ...each, paint })),
    tiles: tilesOf(state.layer, state.head, other),
    images: new Map(),
    paint,
  });
}
function imageOf(data, plane) {
  if (!data.images.has(plane)) data.images.set(plane, data.paint(plane));
  return data.images.get(plane);
}
