// What is known of one place in the picture, in words.
function readout(data, query, key) {
  const { plane } = data,
    row = Math.min(plane.height - 1, pixelOf(query, facts.q_len, plane.height)),
    column = Math.min(plane.width - 1, pixelOf(key, facts.kv_len, plane.width));
  const own = data.regions.find(
    ({ bounds: [first, end, firstKey, endKey] }) =>
      query >= first && query < end && key >= firstKey && key < endKey,
  );
  const value = own
    ? own.plane.values[(query - own.bounds[0]) * own.plane.width + key - own.bounds[2]]
    : plane.values[row * plane.width + column];
  const place = `Query ${query}${quoted(queryText(query))}, key ${key}${quoted(keyText(key))}`;
  if (own || facts.exact)
    return `${place}: ${state.other ? "difference" : "weight"} ${number(value)}`;
  const of = state.reduce === "max" ? "largest weight" : "mean weight",
    says = value === 0 && !state.other ? "at most 1e−6" : number(value, 2);
  const among = topKeys(data.rows, query).find((each) => each.key === key);
  const exact = among && !state.other ? `; weight ${number(among.weight, DIGITS)}` : "";
  return `${place}${exact}; ${state.other ? `difference of the ${of}s` : of} of the block ${says}`;
}
// The pixel of a query or key: pixel i holds those from i * length / size on, rounded down.
const pixelOf = (place, length, size) => Math.ceil(((place + 1) * size) / length) - 1;
