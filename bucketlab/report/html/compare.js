// The page of two runs against each other. Draws what the comparison and the two profiles hold.

const data = JSON.parse(document.getElementById("data").textContent);
const { comparison } = data;
const sides = [["A", data.a], ["B", data.b]];
const followers = [];
const pictures = new Map(); // timelines by letter

function build() {
  const page = document.getElementById("page");
  const parts = [head, jobs, stepsSection, pairOf, figuresSection, bucketsSection, notes].map((part) => part());
  page.replaceChildren(...parts.filter(Boolean));
  printWhole(redrawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
}

const redrawAll = () => { for (const follow of followers) follow(); };

function head() {
  const named = ([letter, side]) => el("p", { class: "side wrap" }, el("b", { class: `letter side-${letter}` }, letter), " ", el("b", {}, side.run), " ", chip(side.kind), " ", dim([letter === "A" ? "before" : "after", written(side.created)].filter(Boolean).join(", ")));
  return el("div", { id: "answer" }, pageHead([], "", redrawAll), el("h1", { id: "verdict", class: comparison.verdict.length > 110 ? "long" : null }, comparison.verdict), sides.map(named));
}

function jobs() {
  if (!comparison.differences.length) return null;
  return section("jobs", "What differs in the jobs", comparison.comparable ? null : el("b", { class: "worse" }, "not the same job"), el("ul", { class: "plain small wrap" }, comparison.differences.map((one) => el("li", {}, one))));
}

// ---- where the steps go, and their timelines ----------------------------------------------------------------------

function stepsSection() {
  const broken = sides.filter(([, side]) => side.breakdown);
  const scenes = sides.map(([letter, side]) => [letter, side, measuredSceneOf(side)]).filter(([, , scene]) => scene.buckets.length);
  if (!broken.length && !scenes.length) return null;
  const longest = Math.max(...broken.map(([, side]) => lengthOf(side.parts)));
  const bars = broken.map(([letter, side]) => el("div", { class: "versus" }, el("b", { class: `letter side-${letter}` }, letter), el("div", { class: "track" }, stackedBar(side.parts, longest)), el("span", { class: "value" }, units.duration(side.breakdown.wall_ns))));
  const legend = new Map(broken.flatMap(([, side]) => side.parts).map((one) => [one.name, one.tone]));
  return section(
    "steps",
    "Where a step goes",
    [kindsOf(), dim("traced steps, medians over ranks, on one scale")],
    el("div", { id: "bars" }, bars),
    el("div", { class: "legend" }, [...legend].map(([name, tone]) => el("span", {}, el("i", { class: `fill-${tone}` }), name))),
    scenes.length ? timelines(scenes) : null,
  );
}

const kindsOf = () => [...new Set(comparison.kind)].map(chip);

/** One above the other on one axis of time; zooming and panning one moves the other. */
function timelines(scenes) {
  const end = Math.max(...scenes.map(([, , scene]) => scene.end_ns));
  const gutter = gutterOf(scenes.map(([, , scene]) => scene));
  const noun = scenes.some(([, , scene]) => scene.noun === "bucket") ? "bucket" : "collective";
  const blocks = scenes.map(([letter, side, scene]) => {
    const selected = el("div", { class: "selected", id: `selected-${letter}`, "aria-live": "polite" });
    const picture = createTimeline(
      `One step of ${letter}: compute, the link and its ${noun}s. Arrow keys choose, plus and minus zoom both runs.`,
      (bucket) => selected.replaceChildren(...(bucket ? chosen(bucket, scene.noun) : [])),
      (from, to) => { for (const other of pictures.values()) if (other !== picture) other.look(from, to); },
    );
    pictures.set(letter, picture);
    picture.canvas.id = `step-${letter}`;
    picture.canvas.setAttribute("aria-describedby", selected.id);
    const update = () => picture.update({ ...scene, end_ns: end, gutter, markers: side.breakdown ? [{ at_ns: side.breakdown.wall_ns, label: `${letter} ${units.duration(side.breakdown.wall_ns)}`, tone: "current" }] : [] });
    followers.push(update);
    update();
    return el("div", { class: "lane" }, el("div", { class: "row" }, el("h3", {}, el("b", { class: `letter side-${letter}` }, letter), " ", side.run, " ", chip(side.kind)), pictures.size === 1 ? picture.tools : null), picture.root, selected);
  });
  return el("div", { id: "timelines" }, blocks, el("div", { class: "legend" }, timelineLegend(noun, false)), el("p", { class: "small dim" }, `Rank 0, medians of traced steps. Zoom and pan move both.`));
}

// ---- step times and curves ----------------------------------------------------------------------------------------

function pairOf() {
  const there = [samplesSection(), curvesSection()].filter(Boolean);
  return there.length ? el("div", { class: "pair" }, there) : null;
}

/** Every untraced step as a dot, and the share of steps that took no longer. */
function samplesSection() {
  const timed = sides.filter(([, side]) => side.step && side.step.samples.length);
  if (!timed.length) return null;
  const drawn = responsive((width) => {
    const all = timed.flatMap(([, side]) => side.step.samples).sort((a, b) => a - b);
    // One step in a hundred may have waited for something else; the rest should not be a wall for it.
    const high = Math.min(all[all.length - 1], 2.5 * all[Math.floor(all.length / 2)]);
    const pad = 0.04 * (high - all[0]) || 0.05 * high;
    const x = { domain: [(all[0] - pad) / 1e6, (high + pad) / 1e6], ticks: width / 90, label: "step, ms", format: tick };
    const c = chart(width, 300, x, { domain: [0, 1], ticks: 4, label: "steps that took no longer", format: (one) => `${Math.round(100 * one)} %` }, "untraced step times of both runs");
    for (const [letter, side] of timed) {
      const sorted = [...side.step.samples].sort((a, b) => a - b);
      let path = "";
      sorted.forEach((ns, at) => {
        const px = c.sx(Math.min(ns / 1e6, x.domain[1]));
        path += `${at ? `H${px.toFixed(1)}` : `M${px.toFixed(1)},${c.sy(0).toFixed(1)}`}V${c.sy((at + 1) / sorted.length).toFixed(1)}`;
      });
      const median = c.sx(side.step.median_ns / 1e6);
      c.plot.append(
        svg("path", { class: `line-${letter}`, d: path }),
        svg("line", { class: `median side-${letter}`, x1: median, x2: median, y1: c.sy(0), y2: c.sy(1) }),
      );
    }
    return c.root;
  });
  return section("samples", "Step times", kindsOf(), drawn.holder, el("div", { class: "legend" }, timed.map(([letter, side]) => el("span", {}, el("i", { class: `thin side-${letter}` }), `${letter}: median `, el("b", {}, units.duration(side.step.median_ns)), `, ${units.counted(side.step.samples.length, "untraced step")}`))));
}

function curvesSection() {
  const explicit = (side) => side.points.filter((one) => one.first_bucket_mb === null && !one.bucket_cap_mb_list.length);
  const curved = sides.map(([letter, side]) => [letter, side, explicit(side)]).filter(([, , points]) => points.length > 1);
  if (!curved.length) return null;
  const drawn = responsive((width) => {
    const caps = curved.flatMap(([, side, points]) => [...points.map((one) => one.bucket_cap_mb), ...(side.current_cap_mb === null ? [] : [side.current_cap_mb])]);
    const values = curved.flatMap(([, side, points]) => [...points.flatMap((one) => [one.step_ns, one.low_ns ?? one.step_ns, one.high_ns ?? one.step_ns]), ...(side.step ? [side.step.median_ns] : [])]).sort((a, b) => a - b);
    const high = Math.min(values[values.length - 1], 3 * values[Math.floor(values.length / 2)]);
    const pad = 0.06 * (high - values[0]) || 0.05 * high;
    const x = { domain: [Math.min(...caps), Math.max(...caps) * 1.2], log: 2, ticks: width / 72, label: "bucket_cap_mb", format: (one) => short(units.size(one * 1048576)) };
    const y = { domain: [Math.max(0, values[0] - pad) / 1e6, (high + pad) / 1e6], label: "step, ms", ticks: 5, format: tick };
    const c = chart(width, 300, x, y, "predicted step time against bucket size, of both runs");
    const at = (ns) => c.sy(Math.min(Math.max(ns / 1e6, y.domain[0]), y.domain[1]));
    for (const [letter, side, points] of curved) {
      const banded = points.filter((one) => one.low_ns !== null && one.high_ns !== null);
      if (banded.length > 1) c.plot.append(svg("path", { class: `band side-${letter}`, d: `${pathOf([...banded.map((one) => [c.sx(one.bucket_cap_mb), at(one.high_ns)]), ...banded.map((one) => [c.sx(one.bucket_cap_mb), at(one.low_ns)]).reverse()])}Z` }));
      c.plot.append(svg("path", { class: `line-${letter}`, d: pathOf(points.map((one) => [c.sx(one.bucket_cap_mb), at(one.step_ns)])) }));
      if (side.best) c.plot.append(svg("text", { class: `side-${letter}`, x: c.sx(side.best.bucket_cap_mb), y: at(side.best.step_ns) + 5, "text-anchor": "middle" }, "★", svg("title", {}, `${letter}, best: ${units.capacity(side.best.bucket_cap_mb)}, ${units.duration(side.best.step_ns)}, predicted`)));
      if (side.step && side.current_cap_mb !== null) {
        const px = c.sx(side.current_cap_mb);
        c.plot.append(svg("line", { class: `median side-${letter} solid`, x1: px, x2: px, y1: at(side.step.p10_ns), y2: at(side.step.p90_ns) }), svg("circle", { class: `dot side-${letter}`, cx: px, cy: at(side.step.median_ns), r: 5 }, svg("title", {}, `${letter}, in force: ${units.duration(side.step.median_ns)}, ${side.kind}`)));
      }
    }
    return c.root;
  });
  const kinds = [...new Set(comparison.kind)].join(" and ");
  return section("curves", "Step time against bucket size", chip("predicted"), drawn.holder, el("div", { class: "legend" }, curved.map(([letter]) => el("span", {}, el("i", { class: `thin side-${letter}` }), `${letter}: predicted, with its band`)), el("span", {}, `○ ${kinds} with the setting in force, p10 to p90`), el("span", {}, "★ best")), predictionNotes(curved));
}

/** What the curves leave out, and of which run; once where it holds for both. */
function predictionNotes(curved) {
  const letters = new Map();
  for (const [letter, side] of curved) for (const note of side.prediction_notes) letters.set(note, [...(letters.get(note) || []), letter]);
  return letters.size ? el("ul", { class: "plain small dim" }, [...letters].map(([note, whose]) => el("li", {}, `${whose.join(" and ")}: ${note}`))) : null;
}

// ---- figures and buckets ------------------------------------------------------------------------------------------

function figuresSection() {
  const rows = comparison.figures.map((one, at) => [{ name: one.name }, ...data.cells[at].slice(0, 2), { tone: toneOf(one), text: data.cells[at][2] }, data.cells[at][3], { node: forest(one) }]);
  return section("figures", "Every figure", dim("an interval that does not touch the line is more than chance"), table(["<", "A", "B", "B − A", "95 % interval", "<relative to A, ±50 %"], rows));
}

/** Where less is better it is said with the figure's colour; counts and ratios have none. */
const LESS = /^(step|exposed|idle|input|communication$|copies|latest rank|all-reduce|link latency|predicted best)/;

function toneOf(figure) {
  if (!comparison.comparable || figure.low === null || (figure.low <= 0 && figure.high >= 0)) return "";
  const better = LESS.test(figure.name) ? figure.difference < 0 : /^(overlap|link bandwidth)/.test(figure.name) ? figure.difference > 0 : null;
  return better === null ? "" : better ? "better" : "worse";
}

/** The difference and its interval as a part of A, on a scale that ends where half of A is lost or won. */
function forest(figure) {
  if (!figure.a || figure.difference === null) return "";
  const wide = 180;
  const at = (part) => wide / 2 + (wide / 2 - 6) * Math.max(-1, Math.min(1, part / 0.5));
  const part = figure.difference / figure.a;
  const root = svg("svg", { class: "forest", viewBox: `0 0 ${wide} 16`, width: wide, height: 16, role: "img", "aria-label": `${(100 * part).toFixed(1)} % of A` }, svg("line", { class: "axis", x1: wide / 2, x2: wide / 2, y1: 0, y2: 16 }));
  if (figure.low !== null) root.append(svg("line", { class: `reach ${toneOf(figure)}`, x1: at(figure.low / figure.a), x2: at(figure.high / figure.a), y1: 8, y2: 8 }));
  root.append(svg("circle", { class: `mark ${toneOf(figure)}`, cx: at(part), cy: 8, r: 3.5 }), svg("title", {}, `${part > 0 ? "+" : ""}${(100 * part).toFixed(1)} %`));
  return root;
}

function bucketsSection() {
  if (!comparison.buckets.length || !comparison.comparable) return null;
  const span = (list) => (list.length > 1 ? `${Math.min(...list)}..${Math.max(...list)}` : list.length ? String(list[0]) : NOTHING);
  const names = (list) => (list.length > 1 ? `${list[0]} to ${list[list.length - 1]}` : list[0] || "");
  const rows = comparison.buckets.map((one, at) => [{ name: span(one.a_indices) }, { name: span(one.b_indices) }, threeDigits(one.bytes / 1048576), units.duration(one.a_ready_ns), units.duration(one.b_ready_ns), units.duration(one.a_end_ns), units.duration(one.b_end_ns), units.duration(one.a_exposed_ns), units.duration(one.b_exposed_ns), one.exposed_difference_ns === null ? NOTHING : `${one.exposed_difference_ns > 0 ? "+" : ""}${units.duration(one.exposed_difference_ns)}`, data.intervals[at] || NOTHING, { name: names(one.parameters) }]);
  return section("buckets", "Buckets with the same parameters", dim("times from the step's start; of several buckets together the last moment"), table(["<A", "<B", "MiB", "A ready", "B ready", "A end", "B end", "A exposed", "B exposed", "exposed B − A", "95 % interval", "<parameters"], rows, 300));
}

function notes() {
  return el("footer", {}, el("ul", { class: "plain small" }, comparison.notes.map((one) => el("li", {}, one))), `BucketLab ${data.version}. Measured, emulated and predicted figures are marked as such.`);
}

build();

/** For tests that use the mouse. */
window.bucketlab = Object.freeze({ pixelOf: (letter, ns) => pictures.get(letter).x(ns) });
