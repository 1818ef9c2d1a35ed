// Puts the page together: the setting that the sliders hold, and every section that follows it.

const data = JSON.parse(document.getElementById("data").textContent);
const { profile, model } = data;
const prediction = profile.prediction;

/** Traces of other programs tell collectives, and not which of them are buckets. */
const noun = profile.modules.length || profile.command.length ? "bucket" : "collective";
const severalModules = profile.modules.length > 1;

/** caps_bytes: null for the setting in force; ranks, bandwidth: null as measured. */
const setting = { caps_bytes: null, cap_mb: currentCapMb(), preset: "current", ranks: null, bandwidth: null };
let showing = profile.buckets.some((one) => one.end_ns !== null) || !model ? "measured" : "predicted";
const followers = [];

function currentCapMb() {
  if (!profile.modules.length) return 25;
  return profile.modules.reduce((a, b) => (b.parameters > a.parameters ? b : a)).bucket_cap_mb;
}

/** Settings with a name of their own, each with what makes it. */
function presetsOf() {
  if (!model || !prediction) return [];
  const found = [];
  if (prediction.default) found.push({ id: "default", mark: "▲", name: "DDP's default", caps_bytes: model.default_caps_bytes, cap_mb: 25 });
  found.push({ id: "current", mark: "●", name: "In force", caps_bytes: null, cap_mb: currentCapMb() });
  found.push({ id: "best", mark: "★", name: "Best size", ...capsOfBest() });
  if (prediction.plan) found.push({ id: "planned", mark: "◆", name: "Planned buckets", ...capsOfPlan(prediction.plan) });
  for (const one of found) one.step_ns = replayAt(model, { ...setting, ranks: null, bandwidth: null, caps_bytes: one.caps_bytes, sizes: one.sizes }).step_ns;
  return found;
}

function capsOfBest() {
  const { best, current } = prediction;
  const same = current && best.step_ns === current.step_ns && best.bucket_cap_mb === current.bucket_cap_mb;
  return { caps_bytes: same ? null : capsOf(best.bucket_cap_mb), cap_mb: best.bucket_cap_mb };
}

function capsOfPlan(plan) {
  const mean = plan.bucket_bytes.reduce((a, b) => a + b, 0) / plan.bucket_bytes.length / 1048576;
  return { caps_bytes: null, sizes: plan.bucket_bytes, cap_mb: mean };
}

const redrawAll = () => { for (const follow of followers) follow(); };

function change(part, view = "predicted") {
  Object.assign(setting, part);
  showing = view;
  redrawAll();
}

function build() {
  const page = document.getElementById("page");
  const parts = [
    top,
    answer,
    stepSection,
    () => pairOf(curveSection(), linkSection()),
    ranksSection,
    waysSection,
    () => pairOf(memorySection(), commandsSection()),
    notesSection,
    terminalSection,
    foot,
  ];
  page.replaceChildren();
  for (const part of parts) {
    const made = part();
    if (made) page.append(made);
  }
  document.title = `${profile.run} - BucketLab`;
  printWhole(redrawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  redrawAll();
}

function pairOf(...sections) {
  const there = sections.filter(Boolean);
  return there.length ? el("div", { class: "pair" }, there) : null;
}

build();

/** For tests and for whoever wants numbers: the replay that the sliders use. */
window.bucketlab = Object.freeze({
  replay: (asked) => {
    const run = replayAt(model, { caps_bytes: null, ranks: null, bandwidth: null, ...asked });
    return { ...run, clock: undefined };
  },
  capsOf,
  setting: () => ({ ...setting, showing }),
  units,
  /** Where the step's picture has a moment and its buckets: for tests that use the mouse. */
  pixelOf: (ns) => drawnStep.x(ns),
});
