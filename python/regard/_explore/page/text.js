// Texts of tokens, which reach the page only by textContent, and labels of choices.
const LABELS = {
  entropy: "entropy (nats)",
  max: "largest weight",
  effective_count: "effective keys",
  mean_distance: "mean distance",
  first_mass: `weight on the first ${facts.first_keys}`,
  local_mass: `weight within ${facts.local_reach}`,
  column_sums: "sum of a key's weights",
  column_means: "mean weight of a key",
  previous_token: "previous token",
  induction: "induction",
};
const MOST = 40;
const tokensOfKeys = facts.tokens && facts.tokens.key;
const positionOf = (query, layer = state.layer) => query + facts.layers[layer].position;

function shown(token, most = MOST) {
  if (token === undefined || token === null) return "";
  const characters = [...token.slice(0, 2 * most)];
  const cut =
    token.length > 2 * most || characters.length > most
      ? characters.slice(0, most).join("") + "…"
      : token;
  return cut
    .replace(/\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(/[\u0000-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "·");
}
const keyText = (key) => (tokensOfKeys ? tokensOfKeys[key] : undefined);
function queryText(query) {
  if (!facts.tokens || facts.tokens.query === null) return undefined;
  return typeof facts.tokens.query === "number"
    ? keyText(query + facts.tokens.query)
    : facts.tokens.query[query];
}
const quoted = (token) => (token === undefined ? "" : ` “${shown(token)}”`);
const headName = (layer, head, part = "label") =>
  (facts.layers.length > 1 ? `layer ${facts.layers[layer][part]}, ` : "") +
  `head ${headFacts(layer, head).name}`;
const minusName = () => (state.other ? ` minus ${headName(...subtracted())}` : "");

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children); // strings become text nodes, never markup
  return made;
}
// A key among its neighbors, with the key emphasized.
function inContext(key, before = 4, after = 3) {
  const box = element("bdi", { class: "context" });
  if (!tokensOfKeys) return box;
  const part = (first, end) =>
    tokensOfKeys
      .slice(Math.max(0, first), Math.max(0, end))
      .map((token) => shown(token))
      .join(glue);
  const left = part(key - before, key),
    right = part(key + 1, key + 1 + after);
  box.append(
    left ? left + glue : "",
    element("b", {}, shown(keyText(key)) || "∅"),
    right ? glue + right : "",
  );
  return box;
}
// The tokens of a language model contain their spaces; words do not.
const glue =
  tokensOfKeys &&
  tokensOfKeys.filter((token) => /^\s|\s$/.test(token)).length > tokensOfKeys.length / 10
    ? ""
    : " ";
