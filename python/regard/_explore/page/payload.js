// The data of the page, decoded when they are needed. `_encoding.py` writes them.
const facts = JSON.parse(document.getElementById("facts").textContent);
const READERS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array };

const halfTable = (() => {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31,
      fraction = bits & 1023;
    let value = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : fraction * 2 ** -24;
    if (exponent === 31) value = fraction ? NaN : Infinity;
    table[bits] = bits >> 15 ? -value : value;
  }
  return table;
})();

async function textOf(id) {
  let element = document.getElementById(id);
  if (!element && document.readyState === "loading") {
    await new Promise((done) =>
      document.addEventListener("DOMContentLoaded", done, { once: true }),
    );
    element = document.getElementById(id);
  }
  return element.textContent;
}
async function inflated(text) {
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
async function arraysOf(id, described) {
  const bytes = await inflated(await textOf(id));
  const arrays = new Map();
  let start = 0;
  for (const [name, kind, shape, exponent] of described) {
    const size = Number(kind.slice(1)) / 8,
      count = shape.reduce((a, b) => a * b, 1);
    const ordered = new Uint8Array(count * size);
    for (let place = 0; place < size; place++)
      for (let i = 0, from = start + place * count; i < count; i++)
        ordered[i * size + place] = bytes[from + i];
    start += count * size;
    const values =
      kind === "f16"
        ? Float32Array.from(
            new Uint16Array(ordered.buffer),
            (bits) => halfTable[bits] * 2 ** exponent,
          )
        : new READERS[kind](ordered.buffer);
    arrays.set(name, { values, shape });
  }
  return arrays;
}

const decoded = new Map();
function decodedOnce(id, described) {
  if (decoded.has(id)) {
    const found = decoded.get(id);
    decoded.delete(id);
    decoded.set(id, found); // the last to be evicted
    return found;
  }
  const promise = arraysOf(id, described);
  decoded.set(id, promise);
  if (decoded.size > 12) decoded.delete(decoded.keys().next().value);
  return promise;
}
const headFacts = (layer, head) => facts.layers[layer].heads[head];
const mapOf = (layer, head) => decodedOnce(`map-${layer}.${head}`, headFacts(layer, head).map);
const rowsOf = (layer, head) => decodedOnce(`rows-${layer}.${head}`, headFacts(layer, head).rows);
