// What pages of one run and of two draw alike: the parts of a step, its measured timeline, what is said of a bucket.

const perCentOf = (part) => `${(part.tenths / 10).toFixed(1)} %`;

/** Of what can be drawn: the rest may be less than nothing. */
const lengthOf = (parts) => Math.max(1, parts.reduce((sum, one) => sum + Math.max(0, one.ns), 0));

/** Parts of a step side by side; `of`: the length that the bar's own width stands for. */
function stackedBar(parts, of = null) {
  const drawn = parts.filter((one) => one.ns > 0);
  const pieces = drawn.map((one) => el("div", { class: `fill-${one.tone} ${one.tone}`, title: `${one.name}: ${units.duration(one.ns)}, ${perCentOf(one)}`, style: { flex: `${one.ns} 1 0` } }, el("span", {}, units.duration(one.ns))));
  return el("div", { class: "bar", role: "img", "aria-label": parts.map((one) => `${one.name} ${perCentOf(one)}`).join(", "), style: of ? { width: `${(100 * lengthOf(parts)) / of}%` } : {} }, pieces);
}

/** In the head of a bucket: module and index where there are several modules. */
const labelOf = (module, index, several) => (several ? `${module}:${index}` : `${index}`);

/** Of a run: { buckets, breakdown, phases, tells_buckets, several_modules }. */
function measuredSceneOf(run) {
  const noun = run.tells_buckets ? "bucket" : "collective";
  const buckets = run.buckets.filter((one) => one.end_ns !== null && one.start_ns !== null).map((one) => ({
    ...one,
    names: one.parameters,
    label: labelOf(one.module, one.index, run.several_modules),
  }));
  const last = buckets.reduce((most, one) => Math.max(most, one.end_ns), 0);
  const end = Math.max(run.breakdown ? run.breakdown.wall_ns : 0, last);
  const computeEnd = (run.phases.find((one) => one.name === "backward") || { end_ns: end }).end_ns;
  const b = run.breakdown;
  return {
    what: `rank 0, medians of traced steps; the exposed part of a ${noun} is drawn at its end`,
    noun,
    phases: run.phases,
    buckets,
    gradients: [],
    bands: last > computeEnd ? [[computeEnd, last]] : [],
    markers: [],
    end_ns: end * 1.01 || 1,
    readout: b ? [el("span", { class: "big" }, units.duration(b.wall_ns)), el("span", {}, "a traced step"), el("span", {}, `${units.duration(b.exposed_ns)} exposed`), el("span", {}, units.counted(buckets.length, noun))] : [],
  };
}

const timelineLegend = (noun, hasGradients) => [
  hasGradients ? el("span", {}, el("i", { class: "thin fill-backward" }), "a gradient is ready") : null,
  el("span", {}, el("i", { class: "dash" }), `${noun} is ready and waits for the link`),
  el("span", {}, el("i", { class: "fill-overlap" }), "travels, hidden behind compute"),
  el("span", {}, el("i", { class: "fill-exposed" }), "travels, exposed"),
];

function chosen(bucket, noun) {
  const figures = [`ready ${units.duration(bucket.ready_ns)}`, `start ${units.duration(bucket.start_ns)}`, `end ${units.duration(bucket.end_ns)}`, `exposed ${units.duration(bucket.exposed_ns)}`, `bus bandwidth ${units.rate(bucket.bus_gb_s)}`];
  const names = bucket.names.length > 8 ? [...bucket.names.slice(0, 8), `and ${grouped(bucket.names.length - 8)} more`] : bucket.names;
  return [el("div", {}, el("b", {}, `${titled(noun)} ${bucket.label}: ${units.size(bucket.bytes || null)}${noun === "bucket" ? `, ${units.counted(bucket.names.length, "parameter")}` : ""}. `), figures.join(", ")), el("div", { class: "mono dim" }, names.join(", "))];
}

const titled = (noun) => noun[0].toUpperCase() + noun.slice(1);
const written = (created) => created.replace("T", " ").replace(/:\d\d(\.\d+)?(Z|\+00:00)$/, " UTC");

/** Header of a page, with the switch of its theme; `names` are the runs'. */
function pageHead(names, created, onTheme) {
  const theme = el("button", { type: "button", "aria-label": "light or dark" }, "Light / dark");
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    onTheme();
  });
  return el("header", { class: "top" }, el("span", { class: "brand" }, "BucketLab"), names.map((one) => el("span", { class: "run" }, one)), created ? dim(written(created)) : null, el("span", { class: "space" }), theme);
}

/** Printed pages are light and hide nothing behind a fold. */
function printWhole(redraw) {
  const root = document.documentElement;
  let before = null;
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, closed: [...document.querySelectorAll("details:not([open])")] };
    root.dataset.theme = "light";
    for (const one of before.closed) one.open = true;
    redraw();
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) root.dataset.theme = before.theme;
    else delete root.dataset.theme;
    for (const one of before.closed) one.open = false;
    before = null;
    redraw();
  });
}
