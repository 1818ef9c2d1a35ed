// The picture of one step: compute above, the link and its buckets below, on one axis of time. Zooms, pans, tells.
//
// A scene: { phases: [{ name, start_ns, end_ns }], buckets: [...], gradients: [ns], bands: [[ns, ns]], markers:
// [{ at_ns, label, tone }], end_ns }. A bucket: { index, module, bytes, ready_ns, start_ns, end_ns, exposed_ns, names,
// bus_gb_s, members }; its exposed part is drawn at its end. `noun`: what to call one, bucket or collective; `gutter`:
// room for names at the left, as `gutterOf` has it.

const FONT_PX = 12;
const LANE = 22;
const MOST_WATERFALL = 300;
const LEAST_WATERFALL = 84;

/** Room at the left that the names of these scenes need. */
function gutterOf(scenes) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = penFont();
  const least = scenes.some((scene) => scene.buckets.some((one) => one.label.includes(":"))) ? 124 : 104;
  const named = scenes.filter((scene) => scene.noun === "collective").flatMap((scene) => scene.buckets);
  return Math.min(210, named.reduce((most, one) => Math.max(most, 18 + pen.measureText(one.names[0]).width), least));
}

const penFont = () => `${FONT_PX}px ${getComputedStyle(document.body).fontFamily}`;

/** As much of a text as the width holds, with a sign that some is missing. */
function fitting(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  const letters = [...text];
  while (letters.length && pen.measureText(`${letters.join("")}…`).width > width) letters.pop();
  return `${letters.join("")}…`;
}

/** `onSelect(bucket or null)`; `onView(from, to)` when the reader zooms or pans. */
function createTimeline(label, onSelect, onView = () => {}) {
  const canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": label, "aria-describedby": "selected" });
  const tip = el("div", { class: "tip", hidden: true });
  const button = (text, name, act) => el("button", { type: "button", "aria-label": name, title: name, onclick: act }, text);
  const tools = el(
    "div",
    { class: "tools" },
    button("+", "zoom in (+)", () => zoom(0.6)),
    button("−", "zoom out (-)", () => zoom(1 / 0.6)),
    button("Whole step", "show the whole step (0)", () => show(0, scene.end_ns)),
  );
  const root = el("div", { class: "stage" }, canvas, tip);
  let scene = null;
  let width = 0;
  let view = [0, 1];
  let selected = null;
  let hits = [];
  let drag = null;
  let hatch = null;

  function update(next) {
    const whole = !scene || (view[0] === 0 && view[1] === scene.end_ns);
    scene = next;
    if (whole || view[1] > scene.end_ns * 1.5) view = [0, scene.end_ns];
    if (selected !== null && selected >= scene.buckets.length) selected = null;
    draw();
    onSelect(selected === null ? null : scene.buckets[selected]);
  }

  const x = (ns) => scene.gutter + ((ns - view[0]) / (view[1] - view[0])) * (width - scene.gutter - 10);
  const timeAt = (px) => view[0] + ((px - scene.gutter) / (width - scene.gutter - 10)) * (view[1] - view[0]);

  function look(from, to) {
    const span = Math.min(Math.max(to - from, 1000), scene.end_ns);
    const start = Math.min(Math.max(0, from), scene.end_ns - span);
    view = [start, start + span];
    draw();
  }

  function show(from, to) {
    look(from, to);
    onView(...view);
  }

  function zoom(factor, around) {
    const fixed = around ?? (view[0] + view[1]) / 2;
    show(fixed - (fixed - view[0]) * factor, fixed + (view[1] - fixed) * factor);
  }

  const pan = (part) => show(view[0] + part * (view[1] - view[0]), view[1] + part * (view[1] - view[0]));

  function select(index) {
    selected = index === null || !scene.buckets.length ? null : Math.min(Math.max(0, index), scene.buckets.length - 1);
    draw();
    onSelect(selected === null ? null : scene.buckets[selected]);
  }

  // ---- drawing --------------------------------------------------------------------------------------------------

  function lanes() {
    const free = [];
    const lane = scene.buckets.map((bucket) => {
      if (bucket.start_ns === null) return null;
      let at = free.findIndex((end) => end <= bucket.start_ns + 1);
      if (at < 0) at = free.length;
      free[at] = bucket.end_ns;
      return at;
    });
    return { lane, count: Math.min(4, Math.max(1, free.length)) };
  }

  function draw() {
    if (!scene || !width) return;
    const tone = tones(root);
    const { lane, count } = lanes();
    const rows = Math.max(1, scene.buckets.length);
    const waterfall = Math.min(MOST_WATERFALL, Math.max(LEAST_WATERFALL, rows * 20));
    const rowHeight = Math.min(24, waterfall / rows);
    const link = scene.phases.length ? 24 + LANE + 24 : 26; // traces of other programs do not tell phases
    const top = { compute: 24, link, buckets: link + count * (LANE + 3) + 10 };
    const markersAt = top.buckets + rowHeight * rows + 6;
    const height = markersAt + (scene.markers.length ? 18 * scene.markers.length : 2);
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = penFont();
    hatch = hatched(pen, tone("exposed"), tone("exposed-line"));
    pen.fillStyle = tone("card");
    pen.fillRect(0, 0, width, height);
    hits = [];

    const names = [[scene.phases.length ? "compute" : "", top.compute + LANE / 2], [count > 1 ? `link, ${count} lanes` : "link", top.link + (count * (LANE + 3)) / 2]];
    pen.save();
    pen.beginPath();
    pen.rect(scene.gutter, 0, width - scene.gutter, height);
    pen.clip();
    axis(pen, tone, height);
    for (const [from, to] of scene.bands) {
      pen.fillStyle = tone("exposed-wash");
      pen.fillRect(x(from), top.compute, x(to) - x(from), height - top.compute);
    }
    for (const phase of scene.phases) {
      if (phase.name) block(pen, phase.start_ns, phase.end_ns, top.compute, LANE + 6, tone, phase.name);
    }
    gradientTicks(pen, tone, top.compute + LANE + 9);
    scene.buckets.forEach((bucket, at) => {
      if (bucket.start_ns === null) return;
      const y = top.link + Math.min(lane[at], count - 1) * (LANE + 3);
      travel(pen, tone, bucket, y, LANE, at === selected);
      hits.push({ at, y, height: LANE, from: bucket.start_ns, to: bucket.end_ns });
      const rowY = top.buckets + at * rowHeight;
      waiting(pen, tone, bucket, rowY, rowHeight);
      travel(pen, tone, bucket, rowY + Math.min(3, rowHeight * 0.15), Math.max(0.8, rowHeight - Math.min(6, rowHeight * 0.3)), at === selected);
      hits.push({ at, y: rowY, height: rowHeight, from: bucket.ready_ns ?? bucket.start_ns, to: bucket.end_ns });
    });
    markers(pen, tone, markersAt);
    pen.restore();

    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.fillStyle = tone("dim");
    for (const [text, y] of names) pen.fillText(text, scene.gutter - 8, y);
    if (rowHeight >= 13) {
      scene.buckets.forEach((bucket, at) => {
        pen.fillStyle = at === selected ? tone("ink") : tone("dim");
        const text = scene.noun === "collective" ? bucket.names[0] : `${bucket.label} · ${units.size(bucket.bytes)}`;
        pen.fillText(fitting(pen, text, scene.gutter - 12), scene.gutter - 8, top.buckets + (at + 0.5) * rowHeight);
      });
    } else {
      pen.fillText(fitting(pen, units.counted(scene.buckets.length, scene.noun), scene.gutter - 12), scene.gutter - 8, top.buckets + 8);
    }
  }

  function axis(pen, tone, height) {
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const ticks = ticksOf([view[0] / 1e6, view[1] / 1e6], Math.max(3, width / 130));
    const decimals = ticks.length > 1 ? Math.max(0, Math.ceil(-Math.log10(ticks[1] - ticks[0]) - 1e-9)) : 1;
    for (const tick of ticks) {
      const at = Math.round(x(tick * 1e6)) + 0.5;
      pen.strokeStyle = tone("faint");
      pen.beginPath();
      pen.moveTo(at, 18);
      pen.lineTo(at, height);
      pen.stroke();
      pen.fillStyle = tone("dim");
      const text = tick.toFixed(decimals);
      pen.textAlign = at < scene.gutter + 14 ? "left" : at > width - 26 ? "right" : "center";
      pen.fillText(tick === ticks[0] ? `${text} ms` : text, at, 3);
    }
  }

  function block(pen, from, to, y, height, tone, name) {
    const left = x(from);
    const wide = x(to) - left;
    if (wide <= 0) return;
    pen.fillStyle = tone(name);
    rounded(pen, left, y, Math.max(1, wide - 1), height, 4);
    pen.fillStyle = tone("on");
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    const middle = (Math.max(left, scene.gutter) + Math.min(left + wide, width)) / 2;
    if (pen.measureText(name).width + 10 < Math.min(left + wide, width) - Math.max(left, scene.gutter)) pen.fillText(name, middle, y + height / 2 + 0.5);
  }

  function gradientTicks(pen, tone, y) {
    pen.fillStyle = tone("backward");
    pen.globalAlpha = scene.gradients.length > 300 ? 0.35 : 0.75;
    for (const at of scene.gradients) pen.fillRect(x(at) - 0.5, y, 1, 6);
    pen.globalAlpha = 1;
    if (selected === null || !scene.buckets[selected].member_ready_ns) return;
    pen.fillStyle = tone("ink");
    for (const at of scene.buckets[selected].member_ready_ns) pen.fillRect(x(at) - 0.75, y - 1, 1.5, 9);
  }

  function waiting(pen, tone, bucket, y, height) {
    if (bucket.ready_ns === null) return;
    const middle = y + height / 2;
    const left = x(bucket.ready_ns);
    const right = x(bucket.start_ns);
    pen.fillStyle = tone("wait");
    if (right - left > 1) {
      if (height >= 8) {
        for (let at = left; at < right; at += 6) pen.fillRect(at, middle - 1, Math.min(3.5, right - at), 2);
      } else {
        pen.fillRect(left, middle - Math.min(1, height / 4), right - left, Math.min(2, height / 2));
      }
    }
    pen.fillStyle = tone("dim");
    if (height >= 5) pen.fillRect(left - 1, y + height * 0.15, 2, height * 0.7);
  }

  function travel(pen, tone, bucket, y, height, isSelected) {
    const left = x(bucket.start_ns);
    const right = Math.max(x(bucket.end_ns), left + 0.6);
    const turn = Math.max(left, x(bucket.end_ns - (bucket.exposed_ns || 0)));
    const gap = right - left > 3 ? 0.5 : 0;
    pen.fillStyle = tone("hidden");
    if (turn > left) rounded(pen, left, y, turn - left - (turn === right ? gap : 0), height, height > 8 ? 3 : 0);
    pen.fillStyle = hatch;
    if (right > turn && bucket.exposed_ns) rounded(pen, turn, y, right - turn - gap, height, height > 8 ? 3 : 0);
    if (isSelected) {
      pen.strokeStyle = tone("ink");
      pen.lineWidth = 2;
      pen.strokeRect(left - 1, y - 1, right - left + 2, height + 2);
      pen.lineWidth = 1;
    }
  }

  function markers(pen, tone, bottom) {
    pen.textBaseline = "middle";
    const inOrder = [...scene.markers].sort((a, b) => b.at_ns - a.at_ns);
    inOrder.forEach((marker, level) => {
      const at = x(marker.at_ns);
      const y = bottom + 18 * level + 9;
      pen.strokeStyle = tone(marker.tone);
      pen.setLineDash([4, 3]);
      pen.beginPath();
      pen.moveTo(at, 20);
      pen.lineTo(at, y + 6);
      pen.stroke();
      pen.setLineDash([]);
      pen.fillStyle = tone(marker.tone);
      pen.textAlign = at - pen.measureText(marker.label).width - 8 > scene.gutter ? "right" : "left";
      pen.fillText(marker.label, at + (pen.textAlign === "right" ? -6 : 6), y);
    });
  }

  // ---- pointer and keys -----------------------------------------------------------------------------------------

  function hitAt(px, py) {
    let best = null;
    for (const hit of hits) {
      if (py < hit.y - 1 || py > hit.y + hit.height + 1) continue;
      const left = x(hit.from);
      const right = x(hit.to);
      const away = px < left ? left - px : px > right ? px - right : 0;
      if (away <= 6 && (!best || away < best.away)) best = { at: hit.at, away };
    }
    return best ? best.at : null;
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  canvas.addEventListener("pointermove", (event) => {
    const [px, py] = place(event);
    if (drag) {
      const moved = ((drag.px - px) / (width - scene.gutter - 10)) * (drag.view[1] - drag.view[0]);
      if (Math.abs(drag.px - px) > 3) drag.moved = true;
      show(drag.view[0] + moved, drag.view[1] + moved);
      return;
    }
    const at = hitAt(px, py);
    const phase = at === null ? scene.phases.find((one) => one.name && py >= 24 && py <= 52 && timeAt(px) >= one.start_ns && timeAt(px) < one.end_ns) : null;
    tip.hidden = at === null && !phase;
    if (at !== null) tip.replaceChildren(...aboutBucket(scene.buckets[at], scene.noun));
    else if (phase) tip.replaceChildren(el("b", {}, phase.name), `${units.duration(phase.end_ns - phase.start_ns)}, from ${units.duration(phase.start_ns)} to ${units.duration(phase.end_ns)}`);
    if (tip.hidden) return;
    const room = root.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(px + 14, room.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${canvas.offsetTop + py + 16}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { px: place(event)[0], view: [...view], moved: false };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragging");
    tip.hidden = true;
  });
  const release = (event) => {
    if (drag && !drag.moved) select(hitAt(...place(event)));
    drag = null;
    canvas.classList.remove("dragging");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("dblclick", () => show(0, scene.end_ns));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return; // the page scrolls
    event.preventDefault();
    if (event.shiftKey) pan(0.001 * (event.deltaY || event.deltaX));
    else zoom(Math.exp(0.0022 * event.deltaY), timeAt(place(event)[0]));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      ArrowRight: () => (event.shiftKey ? pan(0.15) : select(selected === null ? 0 : selected + 1)),
      ArrowLeft: () => (event.shiftKey ? pan(-0.15) : select(selected === null ? 0 : selected - 1)),
      ArrowDown: () => select(selected === null ? 0 : selected + 1),
      ArrowUp: () => select(selected === null ? 0 : selected - 1),
      Home: () => select(0),
      End: () => select(scene.buckets.length - 1),
      Escape: () => select(null),
      "+": () => zoom(0.6),
      "=": () => zoom(0.6),
      "-": () => zoom(1 / 0.6),
      0: () => show(0, scene.end_ns),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  new ResizeObserver(([entry]) => {
    const next = Math.round(entry.contentRect.width);
    if (next && next !== width) {
      width = next;
      draw();
    }
  }).observe(root);
  return { root, tools, update, look, x, canvas };
}

/** A fill that differs from the others in shape as well as in colour. */
function hatched(pen, colour, line) {
  const side = 8;
  const ratio = pen.getTransform().a;
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(side * ratio);
  const brush = tile.getContext("2d");
  brush.scale(tile.width / side, tile.width / side);
  brush.fillStyle = colour;
  brush.fillRect(0, 0, side, side);
  brush.strokeStyle = line;
  brush.lineWidth = 1.1;
  for (const shift of [-side, 0, side]) {
    brush.beginPath();
    brush.moveTo(shift - 1, side + 1);
    brush.lineTo(shift + side + 1, -1);
    brush.stroke();
  }
  const pattern = pen.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(side / tile.width));
  return pattern;
}

function rounded(pen, left, top, wide, high, radius) {
  if (wide <= 0) return;
  pen.beginPath();
  pen.roundRect(left, top, wide, high, Math.min(radius, wide / 2));
  pen.fill();
}

/** Colours of the style sheet, as a canvas takes them. */
function tones(holder) {
  const probe = el("span", { hidden: true });
  holder.append(probe);
  const names = ["card", "on", "ink", "dim", "faint", "forward", "backward", "optimizer", "input", "hidden", "exposed", "exposed-line", "exposed-wash", "wait", "default", "best", "planned"];
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  found.current = found.ink;
  found.floor = found.dim;
  return (name) => found[name] || found.ink;
}

/** What is to be said of a bucket, as elements. */
function aboutBucket(bucket, noun) {
  const shown = bucket.names.slice(0, 6);
  const more = bucket.names.length - shown.length;
  const facts = [
    ["size", noun === "bucket" ? `${units.size(bucket.bytes)}, ${units.counted(bucket.names.length, "parameter")}` : units.size(bucket.bytes || null)],
    ["ready", units.duration(bucket.ready_ns)],
    ["start", units.duration(bucket.start_ns)],
    ["end", units.duration(bucket.end_ns)],
    ["waits", bucket.ready_ns === null || bucket.start_ns === null ? NOTHING : units.duration(bucket.start_ns - bucket.ready_ns)],
    ["travels", bucket.start_ns === null ? NOTHING : units.duration(bucket.end_ns - bucket.start_ns)],
    ["exposed", units.duration(bucket.exposed_ns)],
    ["bus bandwidth", units.rate(bucket.bus_gb_s)],
  ];
  return [
    el("b", {}, `${titled(noun)} ${bucket.label}`),
    el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("div", { class: "mono small" }, shown.join(", "), more > 0 ? ` and ${grouped(more)} more` : ""),
  ];
}
