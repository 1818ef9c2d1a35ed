// What tests of looks ask a page. Put into it as it is; each function gives a list, empty where all is well.

/** Text that can be seen and has too little contrast (WCAG 2.2, 1.4.3), as [text, ratio, wanted]. */
function lowContrast() {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const parsed = (text) => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const over = (front, back) => front.slice(0, 3).map((c, at) => c * front[3] + back[at] * (1 - front[3]));
  const behind = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) {
      const layer = parsed(getComputedStyle(one).backgroundColor);
      if (layer[3] > 0) layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((back, layer) => over(layer, back), [255, 255, 255]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.getElementById("page"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest("title, noscript, .sr")) continue;
    const style = getComputedStyle(node);
    const back = behind(node);
    const colour = node instanceof SVGElement ? style.fill : style.color;
    const pair = [luminance(over(parsed(colour), back)), luminance(back)].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    const size = parseFloat(style.fontSize);
    const wanted = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < wanted) found.push([walker.currentNode.data.slice(0, 40), ratio, wanted]);
  }
  return found;
}

/** From now on, what is written on canvases. */
function noteCanvas() {
  const proto = CanvasRenderingContext2D.prototype;
  const write = proto.fillText;
  window.writings = [];
  proto.fillText = function (text, x, y, ...rest) {
    const width = this.measureText(text).width;
    const left = x - { left: 0, start: 0, center: width / 2, right: width, end: width }[this.textAlign];
    const top = this.textBaseline === "top" ? y : y - 6;
    window.writings.push({ canvas: this.canvas, text, left, right: left + width, top, bottom: top + 11 });
    return write.call(this, text, x, y, ...rest);
  };
}

/** Texts in charts, bars and on canvases that are cut at an edge or cover another. */
function cutOrCovered() {
  const found = [];
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2.5;
  const check = (texts, frame, where) => {
    texts.forEach((one, at) => {
      if (one.left < frame.left - 1 || one.right > frame.right + 1) found.push(`${where}: ${one.text} is cut`);
      for (const other of texts.slice(at + 1)) if (meet(one, other)) found.push(`${where}: ${one.text} covers ${other.text}`);
    });
  };
  for (const root of document.querySelectorAll("svg")) {
    if (!root.checkVisibility()) continue;
    const texts = [...root.querySelectorAll("text")].map((node) => {
      const box = node.getBoundingClientRect();
      const slack = 0.18 * box.height; // the line's height is more than its letters'
      return { text: node.firstChild?.data ?? "", left: box.left, right: box.right, top: box.top + slack, bottom: box.bottom - slack };
    });
    check(texts.filter((one) => one.text.trim()), root.closest("section").getBoundingClientRect(), root.getAttribute("aria-label"));
  }
  for (const canvas of document.querySelectorAll("canvas")) {
    const last = new Map(window.writings.filter((one) => one.canvas === canvas).map((one) => [`${one.text} ${one.top}`, one]));
    check([...last.values()], { left: 0, right: canvas.clientWidth }, "timeline");
  }
  for (const node of document.querySelectorAll(".bar span, button, h1, h2, h3, .tile *, output")) {
    if (node.checkVisibility() && node.parentElement.clientWidth && node.getBoundingClientRect().width > node.parentElement.getBoundingClientRect().width + 1) found.push(`${node.textContent} is wider than its place`);
  }
  return found;
}
