// The tab's own frame: a list of runs, the page of the chosen one, and two of them side by side. All text that comes
// from runs is set as text, never as markup.

const STYLE = `
  :host, body { color-scheme: light dark; margin: 0; }
  body { font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; font-variant-numeric: tabular-nums; background: light-dark(#f6f7f9, #0e1116); color: light-dark(#15191f, #e9edf2); display: flex; flex-direction: column; height: 100vh; }
  .bar { display: flex; gap: 10px; align-items: center; flex-wrap: wrap; padding: 8px 14px; border-bottom: 1px solid light-dark(#dde1e7, #2a313b); background: light-dark(#fff, #161b22); }
  .bar b { letter-spacing: -0.01em; }
  label { color: light-dark(#59626e, #96a1ae); }
  select, button { font: inherit; color: inherit; background: light-dark(#fff, #161b22); border: 1px solid light-dark(#cfd5dd, #3a434f); border-radius: 7px; padding: 3px 8px; max-width: 44ch; }
  button { cursor: pointer; } :is(select, button):focus-visible { outline: 2px solid #1f5fd0; }
  button[aria-pressed="true"] { background: #1f5fd0; color: #fff; border-color: #1f5fd0; }
  iframe { flex: 1; border: 0; width: 100%; }
  .pane { flex: 1; overflow: auto; padding: 18px 24px; }
  h1 { font-size: 22px; margin: 0 0 8px; letter-spacing: -0.01em; }
  table { border-collapse: collapse; } th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid light-dark(#e7eaee, #20262f); overflow-wrap: anywhere; }
  th { color: light-dark(#59626e, #96a1ae); font-weight: 550; } td:first-child, th:first-child, .name { text-align: left; }
  .dim { color: light-dark(#59626e, #96a1ae); } .problem { color: light-dark(#c23c12, #ff8a5c); } .message { font-size: 16px; max-width: 70ch; }
  tr.run { cursor: pointer; } tr.run:hover td { background: light-dark(#eef3fd, #1a2433); }
`;

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child instanceof Node ? child : String(child));
  return node;
}

// The module lies at data/plugin/bucketlab/index.js; what it asks for lies beside it.
const beside = (path) => new URL(path, import.meta.url).href;
const ask = async (path) => (await fetch(beside(path))).json();

let state = { runs: [], message: "", view: "list", run: null, a: null, b: null };

export async function render() {
  document.head.append(el("style", {}, STYLE));
  document.body.replaceChildren(el("div", { class: "pane dim" }, "Looking for runs…"));
  try {
    Object.assign(state, await ask("runs"));
  } catch (error) {
    document.body.replaceChildren(el("div", { class: "pane" }, el("p", { class: "message problem" }, `TensorBoard did not answer: ${error.message}`)));
    return;
  }
  const usable = state.runs.filter((one) => !one.problem);
  state.run = usable.length ? usable[0].name : null;
  state.b = state.run;
  state.a = usable.length > 1 ? usable[1].name : state.run;
  draw();
}

function draw() {
  if (!state.runs.length) {
    document.body.replaceChildren(el("div", { class: "pane", id: "nothing" }, el("h1", {}, "No runs"), el("p", { class: "message" }, state.message)));
    return;
  }
  const views = { list: ["Runs", drawList], report: ["Page", drawReport], compare: ["Compare", drawCompare] };
  const usable = state.runs.filter((one) => !one.problem);
  const choose = (key, text) => el("label", {}, `${text} `, chooser(usable, key));
  const buttons = Object.entries(views).map(([view, [text]]) => el("button", { type: "button", "data-view": view, "aria-pressed": String(view === state.view), onclick: () => go({ view }) }, text));
  document.body.replaceChildren(
    el("div", { class: "bar" }, el("b", {}, "BucketLab"), usable.length ? buttons : null, state.view === "report" ? choose("run", "run") : null, state.view === "compare" ? [choose("a", "A, before"), choose("b", "B, after")] : null),
    views[state.view][1](),
  );
}

function go(part) {
  Object.assign(state, part);
  draw();
}

function chooser(runs, key) {
  const select = el("select", { "data-key": key }, runs.map((one) => el("option", { value: one.name, selected: one.name === state[key] }, one.name)));
  select.addEventListener("change", () => go({ [key]: select.value }));
  return select;
}

function drawList() {
  const rows = state.runs.map((one) =>
    one.problem
      ? el("tr", {}, el("td", {}, one.name), el("td", { class: "name problem", colspan: "7" }, one.problem))
      : el("tr", { class: "run", "data-run": one.name, onclick: () => go({ view: "report", run: one.name }) }, el("td", {}, el("button", { type: "button" }, one.name)), el("td", {}, one.kind), el("td", {}, one.world_size), el("td", {}, one.setting), el("td", {}, one.step), el("td", {}, one.exposed), el("td", {}, one.overlap_ratio), el("td", { class: "name" }, one.script)),
  );
  return el("div", { class: "pane", id: "list" }, el("table", {}, el("thead", {}, el("tr", {}, ["run", "kind", "ranks", "bucket size", "step", "exposed", "overlap ratio", "script"].map((one) => el("th", { scope: "col", class: one === "script" ? "name" : null }, one)))), el("tbody", {}, rows)));
}

function drawReport() {
  return el("iframe", { id: "report", title: `page of ${state.run}`, src: beside(`report?run=${encodeURIComponent(state.run)}`) });
}

function drawCompare() {
  const asked = new URLSearchParams({ a: state.a, b: state.b });
  return el("iframe", { id: "comparison", title: `${state.a} against ${state.b}`, src: beside(`comparison?${asked}`) });
}
