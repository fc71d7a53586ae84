// Weights, levels and colors.
const { decades, top: topLevel } = facts;
const levelTable = Float32Array.from({ length: 256 }, (_, level) =>
  level > topLevel ? NaN : level ? 10 ** ((decades * level) / topLevel - decades) : 0,
);
const isDark = matchMedia("(prefers-color-scheme: dark)");
const colors = () => facts.colors[isDark.matches ? "dark" : "light"];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// This is 0.179 for a color on which black and white have the same contrast (WCAG 2.2).
function luminance(...color) {
  const [red, green, blue] = color
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
// The index in a table of colors; the last index is for NaN.
function weightIndex(weight, largest) {
  if (weight !== weight) return 255;
  if (state.scale === "linear")
    return Math.round(topLevel * Math.min(1, largest > 0 ? weight / largest : 0));
  if (!(weight > 10 ** -decades)) return 0;
  return Math.round((topLevel * (Math.log10(Math.min(1, weight)) + decades)) / decades);
}
const DIFFERENCE_DECADES = facts.difference_decades;
function differenceIndex(difference, largest) {
  if (difference !== difference) return 255;
  const size = Math.abs(difference);
  let share = largest > 0 ? Math.min(1, size / largest) : 0;
  if (state.scale === "log")
    share =
      size > 10 ** -DIFFERENCE_DECADES
        ? (Math.log10(Math.min(1, size)) + DIFFERENCE_DECADES) / DIFFERENCE_DECADES
        : 0;
  return 127 + Math.round(127 * share) * Math.sign(difference);
}
// As many digits as the page has: it rounds the numbers that accompany pictures of blocks.
const DIGITS = facts.exact ? 3 : 2;
function number(value, digits = 3) {
  if (value === undefined || value === null || value !== value) return "not a number";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size === Infinity) return value > 0 ? "∞" : "−∞";
  if (size < 1e-3 || size >= 1e6) {
    const [mantissa, exponent] = value.toExponential(Math.min(digits, 2) - 1).split("e");
    return `${mantissa}e${Number(exponent)}`.replace(/-/g, "−");
  }
  return (size >= 10 ** digits ? String(Math.round(value)) : value.toPrecision(digits)).replace(
    "-",
    "−",
  );
}
