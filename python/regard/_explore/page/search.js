// The occurrences of a token.
const MOST_MATCHES = 200;
let matches = [],
  searched = null;
function search() {
  const wanted = state.find.toLowerCase();
  if (searched === wanted) return;
  searched = wanted;
  matches = [];
  if (wanted)
    tokensOfKeys.forEach((token, key) => {
      if (token.toLowerCase().includes(wanted)) matches.push(key);
    });
  byId("found").textContent = !wanted
    ? ""
    : `${matches.length} of ${tokensOfKeys.length} keys` +
      (matches.length > MOST_MATCHES ? `, the first ${MOST_MATCHES} listed` : "");
  byId("matches").replaceChildren(
    ...matches.slice(0, MOST_MATCHES).map((key) => {
      const go = element(
        "button",
        { type: "button", "data-key": key },
        `${key}  `,
        inContext(key, 3, 3),
      );
      go.addEventListener("click", () => choose(key));
      return element("li", {}, go);
    }),
  );
}
function choose(key) {
  const query = key - facts.layers[state.layer].position;
  change(
    typeof facts.tokens.query === "number" && query >= 0 && query < facts.q_len
      ? { key, query }
      : { key },
  );
}
function nextMatch(step) {
  search();
  if (!matches.length) return;
  const at = matches.findIndex((key) => key >= state.key),
    exact = matches[at] === state.key;
  const next = step > 0 ? (at < 0 ? 0 : at + exact) : (at < 0 ? matches.length : at) - 1;
  choose(matches[(next + matches.length) % matches.length]);
}
function markMatches() {
  for (const go of byId("matches").querySelectorAll("button"))
    go.setAttribute("aria-current", Number(go.dataset.key) === state.key);
}
