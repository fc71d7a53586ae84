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
