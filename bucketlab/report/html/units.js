// Figures as people read them: bucketlab/units.py, with the micro sign where ASCII need not be.

const NOTHING = "–";
const TIMES = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]];
const SIZES = [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]];
const MINUTES_FROM_NS = 120e9;

function grouped(value, decimals = 0) {
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function threeDigits(value) {
  const magnitude = Math.abs(value);
  if (magnitude === 0) return "0";
  if (magnitude < 0.0995) return String(Number(value.toPrecision(2)));
  if (magnitude < 9.995) return value.toFixed(2);
  return magnitude < 99.95 ? value.toFixed(1) : grouped(value);
}

function scaled(value, steps) {
  let [unit, factor] = steps[0];
  for (const [next, nextFactor] of steps.slice(1)) {
    if (Math.abs(value) / nextFactor < 0.9995) break;
    [unit, factor] = [next, nextFactor];
  }
  return `${factor === 1 ? grouped(value) : threeDigits(value / factor)} ${unit}`;
}

const units = {
  duration(ns) {
    if (ns === null || ns === undefined) return NOTHING;
    if (Math.abs(ns) >= MINUTES_FROM_NS) {
      const seconds = Math.round(Math.abs(ns) / 1e9);
      return `${ns < 0 ? "-" : ""}${grouped(Math.floor(seconds / 60))} min ${seconds % 60} s`;
    }
    return scaled(ns, TIMES);
  },
  size: (bytes) => (bytes === null || bytes === undefined ? NOTHING : scaled(bytes, SIZES)),
  share(part, whole) {
    if (part === null || part === undefined || !whole) return NOTHING;
    const percent = (100 * part) / whole;
    if (percent === 0 || Math.abs(percent) >= 9.95) return `${grouped(percent)} %`;
    return Math.abs(percent) >= 0.05 ? `${percent.toFixed(1)} %` : "<0.1 %";
  },
  rate: (gbS) => (gbS === null || gbS === undefined ? NOTHING : `${threeDigits(gbS)} GB/s`),
  ms: (ns, decimals) => (ns === null || ns === undefined ? NOTHING : grouped(ns / 1e6, decimals)),
  counted: (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`,
  capacity: (mb) => `${Number(mb.toPrecision(3))} MiB`,
  digits: threeDigits,
  /** As many decimals as the largest of them needs for three digits, in ms. */
  decimalsFor(values) {
    const largest = Math.max(0, ...values.filter((one) => one !== null && one !== undefined).map(Math.abs)) / 1e6;
    return largest >= 9.95 ? 1 : largest >= 0.995 ? 2 : 3;
  },
};
