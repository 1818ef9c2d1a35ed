// The sections of the page, from top to bottom. Each is a function that makes its element, or null where the profile
// has nothing for it.

const kindOfRun = () => (profile.kind === "emulated" ? "emulated" : "measured");

const top = () => pageHead([profile.run], profile.created, redrawAll);

function answer() {
  const { step, breakdown } = profile;
  const notes = [chip(kindOfRun()), dim(data.texts.spread.replace(/^(measured|emulated) /, ""))];
  return el(
    "div",
    { id: "answer" },
    el("h1", {}, data.texts.headline || "No step was measured."),
    el("p", { class: "dim wrap" }, data.texts.job),
    data.texts.spread || breakdown ? el("p", {}, notes[0], " ", notes[1]) : null,
    breakdown || !profile.missing.length ? null : section("missing", "Not measured, and why", null, lines(profile.missing)),
    breakdown ? tiles(step, breakdown) : null,
    breakdown ? breakdownBar(breakdown) : null,
    profile.advice.length ? section("next", "What to do next", null, el("ol", { class: "next" }, profile.advice.map((one) => el("li", {}, prose(one))))) : null,
  );
}

function tiles(step, b) {
  const tile = (name, value, note, tone) => el("div", { class: "tile" }, el("div", { class: "name" }, name), el("div", { class: `value ${tone || ""}` }, value), el("div", { class: "note" }, note));
  return el(
    "div",
    { class: "tiles" },
    step ? tile("Step", units.duration(step.median_ns), `${units.counted(step.samples.length, "step")}, untraced`) : null,
    tile("Exposed communication", units.duration(b.exposed_ns), `${units.share(b.exposed_ns, b.wall_ns)} of a traced step of ${units.duration(b.wall_ns)}`, "exposed"),
    tile("Overlap ratio", units.share(b.overlap_ns, b.communication_ns), "of communication is hidden", "hidden"),
    tile("Communication", units.duration(b.communication_ns), units.counted(b.collectives, "collective")),
    tile("Compute", units.duration(b.compute_ns), b.kernels ? units.counted(b.kernels, "kernel") : units.share(b.compute_ns, b.wall_ns) + " of a traced step"),
    tile("Idle", units.duration(b.idle_ns), b.input_ns ? `input: ${units.duration(b.input_ns)}` : units.share(b.idle_ns, b.wall_ns)),
  );
}

function ranksTraced() {
  const traced = profile.ranks.filter((one) => one.breakdown).length || 1;
  return traced === profile.world_size ? units.counted(traced, "rank") : `${grouped(traced)} of ${units.counted(profile.world_size, "rank")}`;
}

function breakdownBar(b) {
  const { parts } = data;
  return el(
    "div",
    {},
    stackedBar(parts),
    el("div", { class: "legend" }, parts.map((one) => el("span", {}, el("i", { class: `fill-${one.tone}` }), `${one.name} `, el("b", {}, units.duration(one.ns)), ` ${perCentOf(one)}`)), dim(`one traced step of ${units.duration(b.wall_ns)}, medians over ${ranksTraced()}`)),
    ...[data.texts.rest, data.texts.slowed].map((text) => (text ? el("p", { class: "dim small" }, text) : null)),
  );
}

// ---- the step and its sliders ---------------------------------------------------------------------------------

let drawnStep = null;

function stepSection() {
  const measurable = profile.buckets.some((one) => one.end_ns !== null);
  if (!model && !measurable) return null;
  const selected = el("div", { class: "selected", id: "selected", "aria-live": "polite" });
  const picture = createTimeline("One step: compute, the link and its buckets. Arrow keys choose a bucket, plus and minus zoom.", (bucket) => {
    selected.replaceChildren(...(bucket ? chosen(bucket, noun) : [dim(`Hover or use the arrow keys for a ${noun}'s figures. Drag to pan; + and - or Ctrl+wheel to zoom, 0 for the whole step.`)]));
  });
  drawnStep = picture;
  const readout = el("div", { class: "readout", "aria-live": "polite", id: "readout" });
  const label = el("span", { id: "showing" });
  const buckets = el("div", {});
  const toggle = model && measurable ? viewSwitch() : null;
  followers.push(() => {
    const scene = showing === "measured" ? measuredScene() : predictedScene();
    label.replaceChildren(chip(showing === "measured" ? kindOfRun() : "predicted"), " ", dim(scene.what));
    scene.gutter = gutterOf([scene]);
    picture.update(scene);
    readout.replaceChildren(...scene.readout);
    buckets.replaceChildren(bucketTable(scene));
    if (toggle) toggle.sync();
  });
  return section(
    "step",
    "One step",
    [label, el("span", { class: "space" })],
    model ? knobs() : null,
    el("div", { class: "row" }, toggle ? toggle.root : el("span", {}), picture.tools),
    readout,
    picture.root,
    el("div", { class: "legend" }, timelineLegend(noun, model !== null)),
    selected,
    el("details", {}, el("summary", {}, `${noun === "bucket" ? "Buckets" : "Collectives"} as a table`), buckets),
    model && !hasCurve() ? predictionNotes() : null,
    profile.modules.length ? el("details", {}, el("summary", {}, "The setting in force"), profile.modules.map(aboutModule)) : null,
  );
}

function viewSwitch() {
  const buttons = [["measured", profile.kind === "emulated" ? "As emulated" : "As measured"], ["predicted", "Replayed (predicted)"]].map(([view, text]) => el("button", { type: "button", "data-view": view, onclick: () => change({}, view) }, text));
  return {
    root: el("span", { class: "switch", role: "group", "aria-label": "measured or replayed" }, buttons),
    sync: () => buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.view === showing))),
  };
}

const measuredScene = () => measuredSceneOf({ ...profile, phases: data.phases, tells_buckets: noun === "bucket", several_modules: severalModules });

/** Longest step that the axis leaves room for before it must grow. */
let steadyEnd = 0;

function predictedScene() {
  const run = replayAt(model, setting);
  const inForce = replayAt(model, { ...setting, caps_bytes: null, sizes: null });
  if (!steadyEnd) steadyEnd = 1.12 * Math.max(...presetsOf().map((one) => one.step_ns), run.step_ns);
  const ranks = setting.ranks ?? model.curve.ranks;
  const factor = (2 * (ranks - 1)) / ranks;
  const wallOf = (done) => interpolate(done, run.clock.done, run.clock.at);
  const buckets = run.buckets.map((one) => ({
    ...one,
    label: labelOf(one.module, one.index, severalModules),
    names: one.members.map((at) => profile.gradients[model.modules[one.module].gradient[at]].name),
    member_ready_ns: one.members.map((at) => wallOf(model.modules[one.module].ready_ns[at])),
    bus_gb_s: (one.bytes / (one.end_ns - one.start_ns)) * factor,
  }));
  const forwardEnd = wallOf(model.forward_ns);
  const phases = [
    { name: "input", start_ns: 0, end_ns: Math.min(model.input_ns, forwardEnd) },
    { name: "forward", start_ns: Math.min(model.input_ns, forwardEnd), end_ns: forwardEnd },
    { name: "backward", start_ns: forwardEnd, end_ns: run.compute_end_ns },
    { name: "optimizer", start_ns: run.over_ns, end_ns: run.step_ns },
  ];
  const exposed = run.communication_ns - run.overlap_ns;
  const change = run.step_ns / inForce.step_ns - 1;
  const elsewhere = setting.ranks !== null || setting.bandwidth !== null;
  return {
    what: elsewhere ? `replayed on ${units.counted(ranks, "rank")}${setting.bandwidth ? `, link bandwidth × ${setting.bandwidth}` : ""}: ring over hops that are all alike` : "replayed from ready times and the measured curve of the link",
    phases,
    buckets,
    noun,
    gradients: model.modules.flatMap((one) => one.ready_ns.map(wallOf)),
    bands: run.over_ns > run.compute_end_ns ? [[run.compute_end_ns, run.over_ns]] : [],
    markers: [{ at_ns: inForce.step_ns, label: `in force ${units.duration(inForce.step_ns)}`, tone: "current" }, ...(elsewhere || !prediction ? [] : [{ at_ns: prediction.floor_ns, label: `floor ${units.duration(prediction.floor_ns)}`, tone: "best" }])],
    end_ns: Math.max(steadyEnd, run.step_ns * 1.04, inForce.step_ns * 1.04),
    readout: [
      el("span", { class: "big" }, units.duration(run.step_ns)),
      Math.abs(change) < 0.0005 ? el("span", {}, "as in force") : el("span", { class: change < 0 ? "better" : "worse" }, `${Math.abs(100 * change).toFixed(1)} % ${change < 0 ? "shorter" : "longer"} than in force`),
      el("span", {}, `${units.duration(exposed)} exposed`),
      el("span", {}, `${units.share(run.overlap_ns, run.communication_ns)} hidden`),
      el("span", {}, units.counted(buckets.length, noun)),
      el("span", { class: "dim" }, verdictOf(run, exposed)),
    ],
  };
}

/** Why this size is as good or bad as it is, in a few words. */
function verdictOf(run, exposed) {
  const last = run.buckets[run.buckets.length - 1];
  if (!last || exposed < 0.002 * run.step_ns) return "all of it hides behind the backward pass";
  const latency = (run.buckets.length * timeOnLink(curveAt(model, setting), 0)) / (run.communication_ns || 1);
  if (run.buckets.length > 3 && latency > 0.4) return "small buckets: the link's latency is paid again for each";
  if (run.buckets.length <= 3) return "large buckets: they start late, and nothing hides the last one";
  return last.ready_ns >= last.start_ns - 1 ? "the last bucket alone is exposed" : "the link is busy to the end: it bounds the step";
}

function bucketTable(scene) {
  const decimals = units.decimalsFor(scene.buckets.flatMap((one) => [one.end_ns]));
  const several = scene.buckets.map((one) => [
    { name: one.label },
    grouped(one.names.length),
    threeDigits(one.bytes / 1048576),
    units.ms(one.ready_ns, decimals),
    units.ms(one.start_ns, decimals),
    units.ms(one.end_ns, decimals),
    one.bus_gb_s === null ? NOTHING : units.digits(one.bus_gb_s),
    { tone: one.exposed_ns > 0 ? "exposed" : "", text: units.ms(one.exposed_ns, decimals) },
    { name: one.names.length > 1 ? `${one.names[0]} to ${one.names[one.names.length - 1]}` : one.names[0] || "" },
  ]);
  return table(["<#", "tensors", "MiB", "ready ms", "start ms", "end ms", "bus GB/s", "exposed ms", "<parameters"], several, 300);
}

function aboutModule(module) {
  const caps = module.bucket_cap_mb_list.length ? `bucket_cap_mb_list=[${module.bucket_cap_mb_list.join(", ")}]` : `bucket_cap_mb=${module.bucket_cap_mb}${module.first_bucket_mb === module.bucket_cap_mb ? "" : `, first bucket ${module.first_bucket_mb} MiB`}`;
  const flags = ["gradient_as_bucket_view", "find_unused_parameters", "static_graph"].map((name) => `${name} ${module[name] ? "on" : "off"}`);
  return el("p", { class: "wrap" }, el("b", {}, module.name), `: ${caps}, ${module.is_default ? "DDP's default" : "set by the script"}; ${units.counted(module.bucket_bytes.length, "bucket")}; ${flags.join(", ")}${module.compiled ? ", compiled" : ""}${module.communication_hook ? `; the script's own communication hook ${module.communication_hook}` : ""}`);
}

// ---- sliders --------------------------------------------------------------------------------------------------

const STEPS = 1000;
const NO_BANDWIDTH_GB_S = 1e5; // no link has it; a fit does where time does not grow with size

function capScale() {
  const sizes = model.modules.flatMap((one) => one.bytes).filter((one) => one > 0);
  const low = Math.min(Math.max(Math.min(...sizes) / 1048576, 0.002), 0.5);
  const high = Math.max(...model.modules.map((one) => one.bytes.reduce((a, b) => a + b, 0))) / 1048576;
  return logarithmic([low, Math.max(high, 1.2 * currentCapMb(), 26, 2 * low)], [0, STEPS]);
}

const RANKS = () => [...new Set([...Array.from({ length: 11 }, (_, at) => 2 ** (at + 1)), model.curve.ranks])].filter((one) => one >= 2).sort((a, b) => a - b);

function knobs() {
  const scale = capScale();
  const presets = presetsOf();
  const cap = slider("cap", "Bucket size", 0, STEPS, (at) => {
    const mb = Number(scale.invert(at).toPrecision(3));
    change({ caps_bytes: capsOf(mb), sizes: null, cap_mb: mb, preset: null });
  });
  const marks = el("div", { class: "marks", "aria-hidden": "true" }, apart(presets.map((one) => scale(one.cap_mb) / (STEPS / 100))).map((at, index) => el("span", { class: `tone-${presets[index].id}`, title: presets[index].name, style: { left: `${at}%` } }, presets[index].mark)));
  const ranks = RANKS();
  const asMeasured = ranks.indexOf(model.curve.ranks);
  const byRanks = slider("ranks", "Ranks", 0, ranks.length - 1, (at) => change({ ranks: at === asMeasured ? null : ranks[at] }));
  const speed = logarithmic([1 / 64, 64], [-60, 60]);
  const bandwidth = slider("bandwidth", "Bandwidth", -60, 60, (at) => change({ bandwidth: at === 0 ? null : Number(speed.invert(at).toPrecision(3)) }));
  const buttons = presets.map((one) => el("button", { type: "button", "data-preset": one.id, onclick: () => change({ caps_bytes: one.caps_bytes, sizes: one.sizes || null, cap_mb: one.cap_mb, preset: one.id }) }, el("span", { class: `tone-${one.id}` }, one.mark), " ", el("b", {}, one.name), ` ${presetSize(one)}, ${units.duration(one.step_ns)}`));
  const sweep = el("button", { type: "button", id: "sweep", title: "moves the slider from the smallest to the largest bucket" }, "▶ Sweep");
  sweep.addEventListener("click", () => animate(cap.input, sweep));
  const reset = el("button", { type: "button", onclick: () => change({ caps_bytes: null, sizes: null, cap_mb: currentCapMb(), preset: "current", ranks: null, bandwidth: null }) }, "Reset");
  followers.push(() => {
    const count = setting.ranks ?? model.curve.ranks;
    const factor = setting.bandwidth ?? 1;
    const said = { default: "25 MiB, first 1 MiB", current: data.texts.in_force ? "as in force" : units.capacity(setting.cap_mb), planned: setting.sizes ? units.counted(setting.sizes.length, "bucket") : "" }[setting.preset] || units.capacity(setting.cap_mb);
    cap.sync(Math.round(scale(setting.cap_mb)), said);
    byRanks.sync(ranks.indexOf(count), grouped(count) + (setting.ranks === null ? " (measured)" : ""));
    const rate = model.curve.bandwidth_gb_s < NO_BANDWIDTH_GB_S ? units.rate(model.curve.bandwidth_gb_s * factor) : "";
    bandwidth.sync(Math.round(speed(factor)), factor === 1 ? (rate ? `${rate} (measured)` : "as measured") : [rate, `× ${factor}`].filter(Boolean).join(", "));
    for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset.preset === setting.preset));
  });
  const asked = el("div", { class: "command asked", hidden: true });
  followers.push(() => {
    const elsewhere = setting.ranks !== null || setting.bandwidth !== null;
    asked.hidden = !elsewhere;
    if (!elsewhere) return;
    const command = [data.predict, ...(setting.ranks === null ? [] : [`--ranks ${setting.ranks}`]), ...(setting.bandwidth === null ? [] : [`--bandwidth-scale ${setting.bandwidth}`])].join(" ");
    asked.replaceChildren(dim("the same in the terminal"), el("code", {}, command), copyButton(command));
  });
  return el("div", {}, el("div", { class: "knobs" }, el("div", {}, cap.root, marks), byRanks.root, bandwidth.root), el("div", { class: "presets" }, buttons, sweep, reset), asked);
}

function presetSize(one) {
  if (one.id === "planned") return units.counted(one.sizes.length, "bucket");
  return (one.id === "current" && data.texts.in_force) || units.capacity(one.cap_mb);
}

/** Places in per cent, moved right where two would cover each other. */
function apart(places) {
  const order = places.map((_, index) => index).sort((a, b) => places[a] - places[b]);
  const moved = places.map((at) => Math.min(100, Math.max(0, at)));
  for (let at = 1; at < order.length; at += 1) moved[order[at]] = Math.max(moved[order[at]], moved[order[at - 1]] + 4);
  return moved;
}

function slider(id, name, low, high, act) {
  const input = el("input", { type: "range", id, min: low, max: high, step: 1 });
  const output = el("output", { for: id });
  input.addEventListener("input", () => act(Number(input.value)));
  return {
    input,
    root: el("div", { class: "knob" }, el("label", { for: id }, name, output), input),
    sync: (value, text) => {
      if (Number(input.value) !== value) input.value = value;
      input.setAttribute("aria-valuetext", text);
      output.textContent = text;
    },
  };
}

let sweeping = null;

function animate(input, button) {
  if (sweeping !== null) {
    cancelAnimationFrame(sweeping);
    sweeping = null;
    button.textContent = "▶ Sweep";
    return;
  }
  button.textContent = "■ Stop";
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches; // then in a few steps, and nothing glides
  const began = performance.now();
  const advance = (now) => {
    const smooth = Math.min(1, (now - began) / 7000);
    const part = calm ? Math.round(smooth * 8) / 8 : smooth;
    input.value = Math.round(part * STEPS);
    input.dispatchEvent(new Event("input"));
    sweeping = smooth < 1 ? requestAnimationFrame(advance) : null;
    if (smooth === 1) button.textContent = "▶ Sweep";
  };
  sweeping = requestAnimationFrame(advance);
}

// ---- the curve ------------------------------------------------------------------------------------------------

const curvePoints = () => (prediction ? prediction.points.filter((one) => one.first_bucket_mb === null && !one.bucket_cap_mb_list.length) : []);
const hasCurve = () => model !== null && curvePoints().length > 1;

/** What predictions leave out. */
const predictionNotes = () => (prediction && prediction.notes.length ? el("ul", { class: "plain small dim" }, prediction.notes.map((one) => el("li", {}, one))) : null);

function curveSection() {
  if (!hasCurve()) return null;
  const drawn = responsive((width) => curveChart(width, curvePoints()));
  followers.push(drawn.redraw);
  const legendOf = [el("span", {}, el("i", { class: "thin fill-curve" }), "predicted, with the band in which nine of ten measured medians should lie")];
  const other = el("span", {}, el("i", { class: "dash other" }), "replayed with the ranks and the bandwidth of the sliders");
  followers.push(() => { other.hidden = setting.ranks === null && setting.bandwidth === null; });
  legendOf.push(other);
  const { study } = data;
  if (study) legendOf.push(el("span", {}, el("i", { class: "dot-trial" }), `${study.kind} trials of ${study.name}, at the current setting's pace; 95 % interval of the median`));
  return section(
    "curve",
    "Step time against bucket size",
    chip("predicted"),
    drawn.holder,
    el("div", { class: "legend" }, legendOf, profile.step ? el("span", {}, el("i", { class: "dot-now" }), `${kindOfRun()} with the setting in force, p10 to p90`) : null),
    el("p", { class: "small" }, data.texts.prediction),
    study ? aboutStudy(study) : null,
    data.texts.studies ? el("p", { class: "small warning" }, prose(data.texts.studies)) : null,
    predictionNotes(),
  );
}

/** What the trials say, as the terminal has it, and each of them. */
function aboutStudy(study) {
  const rows = [...study.trials].sort((a, b) => a.step_ns - b.step_ns).map((one) => [
    one.number,
    { name: one.setting },
    grouped(one.buckets),
    units.duration(one.step_ns),
    `${units.duration(one.low_ns)} to ${units.duration(one.high_ns)}`,
    one.is_current || one.speedup === null ? NOTHING : `${one.speedup > 0 ? "+" : ""}${(100 * one.speedup).toFixed(1)} %`,
    grouped(one.samples),
    { name: one.is_current ? "the current setting" : one.finalist ? "in the final race" : "" },
  ]);
  return el(
    "div",
    { id: "study" },
    el("p", {}, chip(study.kind), " ", el("b", {}, study.answer)),
    el("p", { class: "small dim" }, `${study.basis}${study.failed ? `; ${units.counted(study.failed, "trial")} failed` : ""}`),
    el("details", {}, el("summary", {}, "Trials as a table"), table(["#", "<setting", "buckets", "step", "95 % interval", "speed-up", "steps", "<"], rows)),
  );
}

function curveChart(width, points) {
  const trials = data.study ? data.study.trials : [];
  const caps = [...points.map((one) => one.bucket_cap_mb), currentCapMb(), 25, ...trials.map((one) => one.capacity_mb)];
  const elsewhere = setting.ranks !== null || setting.bandwidth !== null;
  const x = { domain: [Math.min(...caps), Math.max(...caps) * 1.2], log: 2, ticks: width / 72, label: "bucket_cap_mb", format: (one) => short(units.size(one * 1048576)) };
  const across = logarithmic(x.domain, [0, 71]);
  const replayed = elsewhere ? Array.from({ length: 72 }, (_, at) => {
    const mb = across.invert(at);
    return { mb, ns: replayAt(model, { ...setting, sizes: null, caps_bytes: capsOf(mb) }).step_ns };
  }) : [];
  const run = replayAt(model, setting);
  const presets = elsewhere ? [] : presetsOf().filter((one) => one.id !== "current");
  const values = [prediction.floor_ns, ...points.flatMap((one) => [one.step_ns, one.low_ns ?? one.step_ns, one.high_ns ?? one.step_ns]), ...replayed.map((one) => one.ns), ...trials.flatMap((one) => [one.low_ns, one.high_ns]), ...(profile.step ? [profile.step.median_ns] : []), run.step_ns].sort((a, b) => a - b);
  // A bucket for each bias of a model takes many times as long; the rest of the curve should not be flat for it.
  const high = Math.min(values[values.length - 1], 3 * values[Math.floor(values.length / 2)]);
  const pad = 0.06 * (high - values[0]) || high * 0.05;
  const y = { domain: [Math.max(0, values[0] - pad) / 1e6, (high + pad) / 1e6], label: "step, ms", ticks: 5, format: tick };
  const c = chart(width, 320, x, y, "predicted step time against bucket size");
  const clip = (ns) => c.sy(Math.min(ns / 1e6, y.domain[1]));
  const banded = points.filter((one) => one.low_ns !== null && one.high_ns !== null);
  if (banded.length > 1) {
    const edge = [...banded.map((one) => [c.sx(one.bucket_cap_mb), clip(one.high_ns)]), ...banded.map((one) => [c.sx(one.bucket_cap_mb), c.sy(Math.max(y.domain[0], one.low_ns / 1e6))]).reverse()];
    c.plot.append(svg("path", { class: "band", d: `${pathOf(edge)}Z` }));
  }
  c.plot.append(
    svg("line", { class: "floor", x1: c.margin.left, x2: width - c.margin.right, y1: c.sy(prediction.floor_ns / 1e6), y2: c.sy(prediction.floor_ns / 1e6) }),
    svg("text", { x: c.margin.left + 6, y: c.sy(prediction.floor_ns / 1e6) + 14 }, `floor: no buckets get below ${units.duration(prediction.floor_ns)}`),
    svg("path", { class: "curve", d: pathOf(points.map((one) => [c.sx(one.bucket_cap_mb), clip(one.step_ns)])) }),
  );
  if (replayed.length) c.plot.append(svg("path", { class: "other", d: pathOf(replayed.map((one) => [c.sx(one.mb), clip(one.ns)])) }));
  for (const trial of trials) {
    const at = c.sx(trial.capacity_mb);
    c.plot.append(svg("line", { class: "trial-whisker", x1: at, x2: at, y1: clip(trial.low_ns), y2: clip(trial.high_ns) }), svg("circle", { class: "trial", cx: at, cy: clip(trial.step_ns), r: 4 }, svg("title", {}, `trial ${trial.number}: ${units.duration(trial.step_ns)}, measured, ${units.counted(trial.samples, "step")}`)));
  }
  if (profile.step) {
    const at = c.sx(currentCapMb());
    const low = c.sy(Math.max(y.domain[0], profile.step.p10_ns / 1e6));
    c.plot.append(svg("line", { class: "whisker", x1: at, x2: at, y1: low, y2: clip(profile.step.p90_ns) }), svg("circle", { class: "dot", cx: at, cy: clip(profile.step.median_ns), r: 5 }, svg("title", {}, `measured: ${units.duration(profile.step.median_ns)}`)));
  }
  const at = c.sx(Math.min(x.domain[1], Math.max(x.domain[0], setting.cap_mb)));
  c.plot.append(svg("line", { class: "cursor", x1: at, x2: at, y1: c.margin.top, y2: c.height - c.margin.bottom }), svg("circle", { class: "now", cx: at, cy: clip(run.step_ns), r: 5 }));
  const marked = [];
  for (const one of presets) {
    const px = c.sx(Math.min(x.domain[1], Math.max(x.domain[0], one.cap_mb)));
    let py = clip(one.step_ns) - 9;
    while (marked.some(([otherX, otherY]) => Math.abs(otherX - px) < 14 && Math.abs(otherY - py) < 13)) py -= 13;
    marked.push([px, py]);
    c.plot.append(svg("text", { class: `tone-${one.id}`, x: px, y: py, "text-anchor": "middle" }, one.mark, svg("title", {}, `${one.name}: ${units.duration(one.step_ns)}`)));
  }
  const hit = svg("rect", { class: "hit", x: c.margin.left, y: c.margin.top, width: width - c.margin.left - c.margin.right, height: c.height - c.margin.top - c.margin.bottom });
  hit.addEventListener("click", (event) => {
    const box = c.root.getBoundingClientRect();
    const mb = Number(c.sx.invert(event.clientX - box.left).toPrecision(3));
    change({ caps_bytes: capsOf(mb), sizes: null, cap_mb: mb, preset: null });
  });
  c.plot.append(hit);
  return c.root;
}

// ---- link -----------------------------------------------------------------------------------------------------

function linkSection() {
  const link = profile.link;
  if (!link) return null;
  const alone = link.points.filter((one) => one.in_flight === 1);
  const drawn = alone.length ? responsive((width) => linkChart(width, link, alone)) : null;
  const rows = link.points.map((one) => [units.size(one.bytes), one.in_flight, units.duration(one.ns), one.low_ns === null ? NOTHING : `${units.duration(one.low_ns)} to ${units.duration(one.high_ns)}`, units.digits(one.algorithm_gb_s), units.digits(one.bus_gb_s)]);
  return section(
    "link",
    "Link",
    chip(link.kind),
    drawn ? drawn.holder : null,
    el("div", { class: "legend" }, el("span", {}, el("i", { class: "dot-now" }), "one at a time, p10 to p90"), link.points.some((one) => one.in_flight > 1) ? el("span", {}, el("i", { class: "dot-pair" }), "two in flight") : null, el("span", {}, el("i", { class: "dash fit" }), "fit")),
    el("p", { class: "small" }, `${link.what}, ${link.dtype}: `, el("b", {}, `${units.duration(link.latency_ns)} + bytes / ${units.rate(link.bandwidth_gb_s)}`), ` (fit, rms error ${units.share(link.residual, 1)}); ${link.concurrency === 1 ? "one all-reduce" : `${link.concurrency} all-reduces`} at a time. Bus bandwidth is algorithm bandwidth × 2(n-1)/n, as nccl-tests has it.`),
    data.texts.doubt_of_fit ? el("p", { class: "small warning" }, data.texts.doubt_of_fit) : null,
    link.used ? el("p", { class: "small" }, `used, by its own log: ${link.used}`) : null,
    el("details", {}, el("summary", {}, "Points as a table"), table(["all-reduce of", "in flight", "time", "95 % interval", "algbw GB/s", "busbw GB/s"], rows)),
  );
}

function linkChart(width, link, alone) {
  const factor = (2 * (link.ranks - 1)) / link.ranks;
  const pairs = link.points.filter((one) => one.in_flight === 2);
  const sizes = alone.map((one) => one.bytes);
  const most = Math.max(...link.points.map((one) => one.bus_gb_s));
  const highest = Math.max(...alone.map((one) => (one.p10_ns > 0 ? (one.bus_gb_s * one.ns) / one.p10_ns : one.bus_gb_s)));
  const top = Math.max(1.12 * most, Math.min(1.6 * most, 1.04 * highest));
  const x = { domain: [Math.min(...sizes), Math.max(...sizes) * 1.05], log: 4, ticks: width / 76, label: "all-reduce of", format: (one) => units.size(one).replace(/\.\d+/, "") };
  const c = chart(width, 320, x, { domain: [0, top], label: "bus bandwidth, GB/s", ticks: 5, format: tick }, "measured bus bandwidth against size");
  const samples = Array.from({ length: 60 }, (_, at) => x.domain[0] * (x.domain[1] / x.domain[0]) ** (at / 59));
  const fit = (bytes) => (bytes / (link.latency_ns + bytes / link.bandwidth_gb_s)) * factor;
  c.plot.append(
    svg("path", { class: "fit", d: pathOf(samples.map((one) => [c.sx(one), c.sy(Math.min(top, fit(one)))])) }),
    svg("path", { class: "curve", d: pathOf(alone.map((one) => [c.sx(one.bytes), c.sy(one.bus_gb_s)])) }),
  );
  const whisker = (one) => svg("line", { class: "whisker", x1: c.sx(one.bytes), x2: c.sx(one.bytes), y1: c.sy(Math.min(top, (one.bus_gb_s * one.ns) / one.p10_ns)), y2: c.sy((one.bus_gb_s * one.ns) / one.p90_ns) });
  c.plot.append(alone.filter((one) => one.p10_ns > 0 && one.p90_ns > 0).map(whisker).reduce((all, one) => (all.append(one), all), svg("g", {})));
  for (const [points, tone] of [[pairs, "dot pair"], [alone, "dot"]]) {
    for (const one of points) c.plot.append(svg("circle", { class: tone, cx: c.sx(one.bytes), cy: c.sy(one.bus_gb_s), r: 4 }, svg("title", {}, `${units.size(one.bytes)}, ${one.in_flight} in flight: ${units.duration(one.ns)}, ${units.rate(one.bus_gb_s)}`)));
  }
  return c.root;
}

// ---- ranks ----------------------------------------------------------------------------------------------------

function ranksSection() {
  const late = profile.stragglers ? profile.stragglers.by_rank : [];
  if (profile.world_size === 1 || (!late.length && profile.ranks.length < 2)) return null;
  const drawn = late.length ? responsive((width) => ranksChart(width, late)) : null;
  const byRank = new Map(late.map((one) => [one.rank, one]));
  const known = profile.ranks.length ? profile.ranks : late.map((one) => ({ rank: one.rank, host: "", device: "", step_median_ns: null, breakdown: null, peak_bytes: null }));
  const rows = [...known]
    .sort((a, b) => (byRank.get(b.rank)?.arrival_lag_ns ?? 0) - (byRank.get(a.rank)?.arrival_lag_ns ?? 0))
    .map((one) => [one.rank, units.duration(one.step_median_ns), units.duration(one.breakdown?.exposed_ns), units.duration(byRank.get(one.rank)?.arrival_lag_ns), units.duration(byRank.get(one.rank)?.wait_ns), units.size(one.peak_bytes || null), { name: `${one.host} ${one.device}`.trim() || NOTHING }]);
  return section(
    "by-rank",
    "Ranks",
    chip(kindOfRun()),
    profile.stragglers && profile.stragglers.verdict ? el("p", {}, profile.stragglers.verdict) : null,
    drawn ? drawn.holder : null,
    drawn ? el("div", { class: "legend" }, el("span", {}, el("i", { class: "fill-exposed" }), "comes late to all-reduces (line: p10 to p90)"), el("span", {}, el("i", { class: "fill-wait" }), "waits there for others")) : null,
    el("details", { open: rows.length <= 8 }, el("summary", {}, `Ranks as a table${rows.length > 8 ? ", the latest first" : ""}`), table(["rank", "step", "exposed", "comes late", "waits", "peak memory", "<where"], rows, 300)),
  );
}

function ranksChart(width, late) {
  const up = Math.max(1, ...late.map((one) => Math.max(one.arrival_lag_ns, one.lag_p90_ns))) / 1e6;
  const down = Math.max(0.001, ...late.map((one) => one.wait_ns)) / 1e6;
  const count = Math.max(...late.map((one) => one.rank)) + 1;
  const y = { domain: [-down * 1.08, up * 1.15], label: "late (up) and waiting (down), ms", ticks: 5, format: (one) => tick(Math.abs(one)) };
  const stride = Math.max(1, 2 ** Math.ceil(Math.log2((count * 34) / width)));
  const c = chart(width, 250, { domain: [-0.5, count - 0.5], ticks: 1, label: "rank", format: () => "" }, y, "how late each rank comes and how long it waits");
  const cellWidth = (width - c.margin.left - c.margin.right) / count;
  const bar = Math.min(46, Math.max(0.7, cellWidth * 0.72));
  let lags = "";
  let waits = "";
  let spreads = "";
  for (const one of late) {
    const at = c.sx(one.rank);
    const box = (from, to) => `M${(at - bar / 2).toFixed(2)},${c.sy(from).toFixed(1)}h${bar.toFixed(2)}V${c.sy(to).toFixed(1)}h${(-bar).toFixed(2)}Z`;
    lags += box(0, Math.max(0, one.arrival_lag_ns / 1e6));
    waits += box(0, -Math.max(0, one.wait_ns / 1e6));
    spreads += `M${at.toFixed(2)},${c.sy(Math.max(0, one.lag_p10_ns / 1e6)).toFixed(1)}V${c.sy(Math.max(0, one.lag_p90_ns / 1e6)).toFixed(1)}`;
  }
  c.plot.append(svg("path", { class: "lag", d: lags }), svg("path", { class: "waits", d: waits }));
  if (bar > 3) c.plot.append(svg("path", { class: "spread", d: spreads }));
  c.plot.append(svg("line", { class: "axis", x1: c.margin.left, x2: width - c.margin.right, y1: c.sy(0), y2: c.sy(0) }));
  for (let rank = 0; rank < count; rank += stride) c.plot.append(svg("text", { x: c.sx(rank), y: c.height - 22, "text-anchor": "middle" }, rank));
  const worst = late.reduce((a, b) => (b.arrival_lag_ns > a.arrival_lag_ns ? b : a));
  if (worst.arrival_lag_ns > 0) {
    const at = c.sx(worst.rank);
    const roomy = at + bar / 2 + 160 < width;
    c.plot.append(svg("text", { class: "strong", x: roomy ? at + bar / 2 + 5 : at - bar / 2 - 5, y: c.sy(worst.arrival_lag_ns / 1e6) + 4, "text-anchor": roomy ? "start" : "end" }, `rank ${worst.rank}: ${units.duration(worst.arrival_lag_ns)} late`));
  }
  const tip = svg("title", {}, "");
  const hit = svg("rect", { class: "hit", x: c.margin.left, y: c.margin.top, width: width - c.margin.left - c.margin.right, height: c.height - c.margin.top - c.margin.bottom }, tip);
  const byRank = new Map(late.map((one) => [one.rank, one]));
  hit.addEventListener("pointermove", (event) => {
    const rank = Math.round(c.sx.invert(event.clientX - c.root.getBoundingClientRect().left));
    const one = byRank.get(rank);
    tip.textContent = one ? `rank ${rank}: late ${units.duration(one.arrival_lag_ns)}, waits ${units.duration(one.wait_ns)}` : "";
  });
  c.plot.append(hit);
  return c.root;
}

// ---- ways to reduce -------------------------------------------------------------------------------------------

function waysSection() {
  const { scaling } = data;
  if (!scaling) return null;
  const names = Object.keys(scaling.what).filter((name) => scaling.rows.some((row) => row.algorithm === name));
  const rowsOf = (name) => scaling.rows.filter((row) => row.algorithm === name);
  const toneOf = (name) => names.indexOf(name) % 6 + 1;
  const time = responsive((width) => waysChart(width, names, rowsOf, toneOf, (row) => row.step_ns / 1e6, "step", (one) => short(units.duration(one * 1e6)), 10));
  const volume = responsive((width) => waysChart(width, names, rowsOf, toneOf, (row) => Math.max(row.sent_bytes, 1) / 1048576, "sent by a rank in a step", (one) => short(units.size(one * 1048576)), 2, (row) => (row.root_bytes > row.sent_bytes * 1.001 ? row.root_bytes / 1048576 : null)));
  return section(
    "ways",
    "Ways to add up gradients",
    chip("predicted"),
    el("p", { class: "small dim" }, `Step time, with the best bucket size of each, and volume, over the number of ranks; ${units.counted(scaling.ranks_per_node, "rank")} a node. Dashed: what the root sends, where there is one.`),
    el("div", { class: "pair" }, el("div", {}, el("h3", {}, "Step time"), time.holder), el("div", {}, el("h3", {}, "Volume per rank"), volume.holder)),
    scaling.findings.length ? el("ul", { class: "plain small" }, scaling.findings.map((one) => el("li", {}, one))) : null,
    measuredWays(),
    el("details", {}, el("summary", {}, "What each is, and what this rests on"), el("dl", { class: "facts small" }, names.map((name) => [el("dt", {}, name), el("dd", {}, scaling.what[name])])), el("ul", { class: "plain small dim" }, scaling.notes.map((one) => el("li", {}, one)))),
    el("details", {}, el("summary", {}, "As a table"), table(["<algorithm", "ranks", "step", "efficiency", "exposed", "best bucket_cap_mb", "sent per rank", "sent by root"], scaling.rows.map((row) => [{ name: row.algorithm }, grouped(row.ranks), units.duration(row.step_ns), units.share(row.efficiency, 1), units.duration(row.exposed_ns), row.bucket_cap_mb === null ? NOTHING : units.capacity(row.bucket_cap_mb), units.size(row.sent_bytes), units.size(row.root_bytes)]))),
  );
}

/** The job's own steps with its gradients reduced in other ways, where the run measured them. */
function measuredWays() {
  if (!profile.topologies.length) return null;
  const largest = (one, name) => (one.volumes.length ? Math.max(...one.volumes.map((rank) => rank[name])) : null);
  const rows = profile.topologies.map((one) => [{ name: one.name }, units.duration(one.step.median_ns), `${units.duration(one.step.p10_ns)} to ${units.duration(one.step.p90_ns)}`, units.size(largest(one, "sent_bytes")), units.size(largest(one, "received_bytes"))]);
  return el("div", {}, el("h3", {}, "This job's own steps, in turns ", chip("measured")), table(["<way", "step", "p10 to p90", "most sent by a rank", "most received by a rank"], rows));
}

function waysChart(width, names, rowsOf, toneOf, valueOf, label, format, base, dashedOf = () => null) {
  const all = names.flatMap(rowsOf);
  const values = all.flatMap((row) => [valueOf(row), dashedOf(row)]).filter((one) => one !== null);
  const ranks = all.map((row) => row.ranks);
  const y = { domain: [Math.min(...values) / 1.15, Math.max(...values) * 1.2], label, ticks: 6, format };
  y.log = y.domain[1] / y.domain[0] > 40 ? base : 2;
  const c = chart(width, 300, { domain: [Math.min(...ranks), Math.max(...ranks, 3)], log: 2, ticks: width / 60, label: "ranks", format: (one) => grouped(one) }, y, `${label} over the number of ranks`, 118);
  const ends = [];
  for (const name of names) {
    const rows = rowsOf(name);
    const tone = toneOf(name);
    c.plot.append(svg("path", { class: `line${tone}`, d: pathOf(rows.map((row) => [c.sx(row.ranks), c.sy(valueOf(row))])) }, svg("title", {}, name)));
    const dashed = rows.filter((row) => dashedOf(row) !== null);
    if (dashed.length > 1) c.plot.append(svg("path", { class: `line${tone} dashed`, d: pathOf(dashed.map((row) => [c.sx(row.ranks), c.sy(dashedOf(row))])) }));
    ends.push({ name, tone, y: c.sy(valueOf(rows[rows.length - 1])) });
  }
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((one, at) => { if (at) one.y = Math.max(one.y, ends[at - 1].y + 14); });
  let bottom = c.height - c.margin.bottom;
  for (const one of [...ends].reverse()) {
    one.y = Math.min(one.y, bottom);
    bottom = one.y - 14;
  }
  for (const one of ends) c.plot.append(svg("text", { class: `ink${one.tone}`, x: width - c.margin.right + 6, y: one.y + 4 }, one.name));
  return c.root;
}

// ---- memory, commands, notes ----------------------------------------------------------------------------------

function memorySection() {
  const memory = profile.memory;
  if (!memory) return null;
  const viewed = profile.modules.every((one) => one.gradient_as_bucket_view);
  const parts = [
    ["parameters", memory.parameters_bytes],
    ["gradients", viewed ? 0 : memory.gradients_bytes],
    [viewed ? "buckets, gradients inside" : "buckets", memory.bucket_buffers_bytes],
    ["optimizer", memory.optimizer_bytes],
    ["buffers", memory.buffers_bytes],
  ];
  const rest = memory.peak_bytes - parts.reduce((sum, [, bytes]) => sum + bytes, 0);
  parts.push(["rest of the peak: activations, workspace", Math.max(0, rest)]);
  const view = `${viewed ? "Gradients lie inside the buckets: gradient_as_bucket_view saves" : "Gradients lie beside the buckets: gradient_as_bucket_view would save"} ${units.size(memory.saved_by_view_bytes)}.`;
  return section(
    "memory",
    "Memory",
    [chip("measured"), dim("each rank")],
    el("div", { class: "bar", role: "img", "aria-label": "memory of a rank at its peak" }, parts.map(([name, bytes], at) => (bytes > 0 ? el("div", { class: `fill-m${at + 1}`, title: `${name}: ${units.size(bytes)}`, style: { flex: `${bytes} 1 0` } }) : null))),
    el("div", { class: "legend" }, parts.map(([name, bytes], at) => (bytes > 0 ? el("span", {}, el("i", { class: `fill-m${at + 1}` }), `${name} `, el("b", {}, units.size(bytes))) : null))),
    el("p", { class: "small" }, `Peak ${units.size(memory.peak_bytes)} of ${units.size(memory.capacity_bytes)}. ${view} `, data.texts.largest_model),
  );
}

function commandsSection() {
  if (!data.commands.length) return null;
  return section("commands", "Commands", null, data.commands.map(([what, command]) => el("div", {}, el("div", { class: "dim small" }, what), el("div", { class: "command" }, el("code", {}, command), copyButton(command)))));
}

const lines = (said) => el("ul", { class: "plain small" }, said.map((one) => el("li", {}, prose(one))));

function notesSection() {
  const lists = [["Not measured, and why", profile.breakdown ? profile.missing : []], ["Notes on these figures", profile.notes]].filter(([, said]) => said.length);
  if (!lists.length) return null;
  return section("notes", "Notes", null, lists.map(([title, said]) => [el("h3", {}, title), lines(said)]));
}

function terminalSection() {
  const facts = [["command", profile.command.join(" ")], ["versions", Object.entries(profile.versions).map(([name, version]) => `${name} ${version}`).join(", ")], ["phases of the run", Object.entries(profile.seconds).map(([name, seconds]) => `${name} ${seconds.toFixed(1)} s`).join(", ")]];
  return section("terminal", "The report as the terminal shows it", copyButton(data.texts.terminal), el("details", {}, el("summary", {}, "Show"), el("pre", { tabindex: "0" }, data.texts.terminal)), el("dl", { class: "facts small" }, facts.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", { class: "wrap" }, value)])));
}

function foot() {
  return el("footer", {}, `BucketLab ${data.version}. Measured, emulated and predicted figures are marked as such. Times count from a step's start; bucket sizes are MiB, which DDP calls mb.`);
}
