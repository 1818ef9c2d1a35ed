// Small helpers that make elements and charts. Text becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) node.append(child);
    else node.append(...(FLOWING.has(node.tagName) ? unbroken(String(child)) : [String(child)]));
  }
  return node;
}

const FLOWING = new Set(["P", "LI", "H1"]);

/** Text whose lines never end between a figure and its unit. */
function unbroken(text) {
  return text.split(/([\d.,]*\d (?:%|[nuµm]?s|[KMGT]?i?B(?:\/s)?)(?![\w]))/).map((piece, at) => (at % 2 ? el("span", { class: "figure" }, piece) : piece)).filter((piece) => piece !== "");
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function section(id, title, remark, ...body) {
  return el(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    el("div", { class: "head" }, el("h2", { id: `${id}-title` }, title), remark),
    ...body,
  );
}

const chip = (kind) => el("span", { class: `chip ${kind}` }, kind);
const dim = (text) => el("span", { class: "dim small" }, text);

/** Sentences of the report mark commands and code with back quotes; commands can be copied. */
function prose(text) {
  return text.split("`").map((piece, at) => {
    if (at % 2 === 0) return piece;
    const isCommand = /^(bucketlab|tensorboard|torchrun|pip) /.test(piece);
    return isCommand ? [el("code", {}, piece), " ", copyButton(piece)] : el("code", {}, piece);
  });
}

function copyButton(text) {
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy ${text.slice(0, 80)}` }, "Copy");
  button.addEventListener("click", async () => {
    const done = await copied(text);
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
  return button;
}

/** Clipboards are closed to frames and to some files: then the text is selected in a field, to be copied by hand. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = el("textarea", { class: "sr", "aria-label": "text to copy" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    if (done) field.remove();
    else field.addEventListener("blur", () => field.remove());
    return done;
  }
}

function table(headings, rows, mostRows = 500) {
  const body = rows.slice(0, mostRows).map((row) => el("tr", {}, row.map(cell)));
  if (rows.length > mostRows) {
    body.push(el("tr", {}, el("td", { class: "name", colspan: headings.length }, `and ${grouped(rows.length - mostRows)} more`)));
  }
  const isName = (heading) => heading.startsWith("<");
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, headings.map((one) => el("th", { scope: "col", class: isName(one) ? "name" : null }, isName(one) ? one.slice(1) : one)))),
      el("tbody", {}, body),
    ),
  );
}

function cell(value) {
  if (value && value.name !== undefined) return el("td", { class: "name" }, value.name);
  if (value && value.node !== undefined) return el("td", { class: "name" }, value.node);
  if (value && value.tone !== undefined) return el("td", { class: value.tone }, value.text);
  return el("td", {}, value === null || value === undefined ? NOTHING : value);
}

// ---- scales and axes ------------------------------------------------------------------------------------------

function linear(domain, range) {
  const [low, high] = domain;
  const spread = high - low || 1;
  const scale = (x) => range[0] + ((x - low) / spread) * (range[1] - range[0]);
  scale.invert = (y) => low + ((y - range[0]) / (range[1] - range[0])) * spread;
  return scale;
}

function logarithmic(domain, range) {
  const inner = linear(domain.map(Math.log), range);
  const scale = (x) => inner(Math.log(Math.max(x, 1e-300)));
  scale.invert = (y) => Math.exp(inner.invert(y));
  return scale;
}

/** Round numbers, about `count` of them, inside the domain. */
function ticksOf([low, high], count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const stride = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / stride - 1e-9); at * stride <= high + stride * 1e-9; at += 1) found.push(at * stride);
  return found;
}

/** Powers of `base` inside the domain, thinned to about `count`. */
function powersOf([low, high], base, count) {
  const first = Math.ceil(Math.log(low) / Math.log(base) - 1e-9);
  const last = Math.floor(Math.log(high) / Math.log(base) + 1e-9);
  const stride = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, count)));
  const found = [];
  for (let at = first; at <= last; at += stride) found.push(base ** at);
  return found;
}

/**
 * An empty chart: axes, grid, a group to draw into.
 * x, y: { domain, log: base or 0, label, format, ticks: count }.
 */
function chart(width, height, x, y, title, right = 14) {
  const margin = { left: 56, right, top: 30, bottom: 40 };
  const make = (axis, range) => (axis.log ? logarithmic : linear)(axis.domain, range);
  const sx = make(x, [margin.left, width - margin.right]);
  const sy = make(y, [height - margin.bottom, margin.top]);
  const ticks = (axis) => (axis.log ? powersOf(axis.domain, axis.log, axis.ticks) : ticksOf(axis.domain, axis.ticks));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title });
  for (const at of ticks(y)) {
    root.append(
      svg("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: sy(at), y2: sy(at) }),
      svg("text", { x: margin.left - 8, y: sy(at) + 4, "text-anchor": "end" }, y.format(at)),
    );
  }
  for (const at of ticks(x)) {
    root.append(
      svg("line", { class: "grid", x1: sx(at), x2: sx(at), y1: margin.top, y2: height - margin.bottom }),
      svg("text", { x: sx(at), y: height - margin.bottom + 17, "text-anchor": "middle" }, x.format(at)),
    );
  }
  root.append(
    svg("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom }),
    svg("text", { x: width - margin.right, y: height - 5, "text-anchor": "end" }, x.label),
    svg("text", { x: 4, y: 12 }, y.label),
  );
  const plot = svg("g", {});
  root.append(plot);
  return { root, plot, sx, sy, margin, width, height };
}

const pathOf = (points) => points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

/** Draws now and whenever the holder's width changes. */
function responsive(draw) {
  const holder = el("div", {});
  let width = 0;
  const redraw = () => {
    if (width > 0) holder.replaceChildren(draw(width));
  };
  new ResizeObserver(([entry]) => {
    const next = Math.round(entry.contentRect.width);
    if (next === width || next === 0) return;
    width = next;
    redraw();
  }).observe(holder);
  return { holder, redraw };
}

/** A round number at an axis. */
const tick = (value) => Number(value.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 9 });

/** Without decimals that say nothing: "1.00 GiB" is "1 GiB". */
const short = (text) => text.replace(/\.0+(?= )/, "");
