// The error along the network: a line (accumulated), dots (each node alone), ticks (left float).

const CHART = { height: 300, left: 46, right: 14, top: 26, bottom: 40 };

function makeChart(host, nodes, mostSensitive, choose) {
  const ceiling = Math.max(20, ...nodes.map((n) => clampedTop(n.sqnr)), ...nodes.map((n) => clampedTop(n.alone)));
  const lowest = Math.min(2, ...nodes.map((n) => finiteOr(n.sqnr, 2)), ...nodes.map((n) => finiteOr(n.alone, 2)));
  const top = Math.ceil(ceiling / 10) * 10;
  const bottom = Math.max(-20, Math.floor((lowest - 2) / 10) * 10);
  let view = [0, Math.max(nodes.length - 1, 1)];
  let width = 0;
  let chosen = null;
  let hovered = null;
  let drag = null;

  const plot = svg("svg", { "aria-hidden": "true" });
  const overlay = svg("g");
  const tip = html("div", { class: "tip", "aria-hidden": "true", hidden: "" });
  host.append(plot, tip);
  host.setAttribute("aria-valuemin", 1);
  host.setAttribute("aria-valuemax", nodes.length);

  const xOf = (index) => scaleOf(view[0], view[1], CHART.left, width - CHART.right)(index);
  const yOf = (value) =>
    scaleOf(bottom, top, CHART.height - CHART.bottom, CHART.top)(Math.min(top, Math.max(bottom, value)));
  const inView = (index) => index >= view[0] - 1 && index <= view[1] + 1;

  function draw() {
    width = Math.max(host.clientWidth, 280);
    plot.setAttribute("viewBox", `0 0 ${width} ${CHART.height}`);
    const base = CHART.height - CHART.bottom;
    const lines = [], dots = [], ticks = [];
    nodes.forEach((node, index) => {
      if (!inView(index)) return;
      const x = xOf(index).toFixed(1);
      if (node.sqnr !== null) lines.push(`${lines.length ? "L" : "M"}${x} ${yOf(node.sqnr).toFixed(1)}`);
      if (node.alone !== null && node.quantized) dots.push(`M${x} ${yOf(node.alone).toFixed(1)}h0`);
      if (!node.quantized) ticks.push(`M${x} ${base}v-7`);
    });
    const levels = ticksBetween(bottom, top, 5);
    const places = ticksBetween(view[0] + 1, view[1] + 1, Math.max(3, width / 110)).filter((t) => Number.isInteger(t));
    plot.replaceChildren(
      svg("defs", {}, svg("clipPath", { id: "plot-area" }, svg("rect", {
        x: CHART.left - 4, y: 0, width: width - CHART.left - CHART.right + 8, height: CHART.height }))),
      ...levels.map((level) => svg("path", { class: "gridline", d: `M${CHART.left} ${yOf(level)}H${width - CHART.right}` })),
      ...levels.map((level) => svg("text", { x: CHART.left - 8, y: yOf(level) + 4, "text-anchor": "end" }, signed(String(level)))),
      svg("text", { x: 0, y: 12 }, "SQNR, dB"),
      svg("path", { class: "baseline", d: `M${CHART.left} ${base}H${width - CHART.right}` }),
      ...places.map((place) => svg("text", { x: xOf(place - 1), y: base + 18, "text-anchor": "middle" }, whole(place))),
      svg("text", { x: width - CHART.right, y: base + 36, "text-anchor": "end" }, "node, in graph order"),
      svg("g", { "clip-path": "url(#plot-area)" },
        svg("path", { class: "ticks", d: ticks.join("") }),
        svg("path", { class: view[1] - view[0] > 400 ? "dots small" : "dots", d: dots.join("") }),
        svg("path", { class: "line", d: lines.join("") }),
        ...ranks()),
      overlay,
    );
    drawOverlay();
  }

  function ranks() {
    const marks = [];
    mostSensitive.forEach((index, rank) => {
      const value = nodes[index].alone ?? nodes[index].sqnr;
      if (value === null || !inView(index)) return;
      const x = xOf(index), y = yOf(value);
      marks.unshift(svg("g", {}, svg("circle", { class: "ring", cx: x, cy: y, r: 7.5 }),
        svg("text", { class: "rank", x, y: y + 3.5 }, String(rank + 1))));
    });
    return marks;
  }

  function drawOverlay() {
    const base = CHART.height - CHART.bottom;
    const parts = [];
    const mark = (index, style) => {
      if (index === null || !inView(index)) return;
      const node = nodes[index], x = xOf(index);
      parts.push(svg("path", { class: style, d: `M${x} ${CHART.top - 8}V${base}` }));
      if (node.alone !== null) parts.push(svg("circle", { class: "point alone", cx: x, cy: yOf(node.alone), r: 4.5 }));
      if (node.sqnr !== null) parts.push(svg("circle", { class: "point", cx: x, cy: yOf(node.sqnr), r: 4.5 }));
    };
    mark(chosen, "chosen");
    if (hovered !== chosen) mark(hovered, "cursor");
    if (drag && Math.abs(drag.to - drag.from) > 6) {
      const [from, to] = [drag.from, drag.to].sort((a, b) => a - b);
      parts.push(svg("rect", { class: "brush", x: from, y: CHART.top - 8, width: to - from, height: base - CHART.top + 8 }));
    }
    overlay.replaceChildren(...parts);
    showTip();
  }

  function showTip() {
    tip.hidden = hovered === null;
    if (hovered === null) return;
    const node = nodes[hovered];
    tip.replaceChildren(html("b", {}, node.name), `${node.op}, ${node.quantized ? "quantized" : "left float"}`, html("br"),
      `accumulated ${decibels(node.sqnr)} dB`, html("br"), `alone ${decibels(node.alone)} dB`);
    const x = (xOf(hovered) / width) * host.clientWidth;
    const flip = x > host.clientWidth / 2;
    tip.style.left = flip ? "auto" : `${x + 14}px`;
    tip.style.right = flip ? `${host.clientWidth - x + 14}px` : "auto";
    tip.style.top = "28px";
  }

  /** Returns the node at a place; of several in a few pixels the one that loses most. */
  function nodeAt(x) {
    const perPixel = (view[1] - view[0]) / (width - CHART.left - CHART.right);
    const middle = view[0] + (x - CHART.left) * perPixel;
    const reach = Math.max(0.5, 3 * perPixel);
    let best = Math.max(0, Math.min(nodes.length - 1, Math.round(middle)));
    if (reach <= 0.5) return best;
    const badness = (index) => finiteOr(nodes[index].alone ?? nodes[index].sqnr, 999);
    for (let i = Math.max(0, Math.ceil(middle - reach)); i <= Math.min(nodes.length - 1, middle + reach); i++) {
      if (badness(i) < badness(best)) best = i;
    }
    return best;
  }

  function zoomTo(from, to) {
    const last = Math.max(nodes.length - 1, 1);
    const span = Math.min(last, Math.max(Math.min(8, last), to - from));
    const start = Math.max(0, Math.min(last - span, from));
    view = [start, start + span];
    draw();
  }

  function zoom(factor) {
    const middle = chosen ?? (view[0] + view[1]) / 2;
    const half = ((view[1] - view[0]) * factor) / 2;
    zoomTo(middle - half, middle + half);
  }

  const placeOf = (event) => {
    const box = plot.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * width;
  };
  host.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { from: placeOf(event), to: placeOf(event) };
    host.setPointerCapture(event.pointerId);
  });
  host.addEventListener("pointermove", (event) => {
    if (drag) drag.to = placeOf(event);
    hovered = nodeAt(placeOf(event));
    drawOverlay();
  });
  host.addEventListener("pointerup", () => {
    if (!drag) return;
    const { from, to } = drag;
    drag = null;
    if (Math.abs(to - from) <= 6) return choose(nodeAt(to));
    const index = (x) => scaleOf(CHART.left, width - CHART.right, view[0], view[1])(x);
    zoomTo(Math.min(index(from), index(to)), Math.max(index(from), index(to)));
  });
  host.addEventListener("pointercancel", () => { drag = null; drawOverlay(); });
  host.addEventListener("pointerleave", () => { hovered = null; drawOverlay(); });
  host.addEventListener("dblclick", () => zoomTo(0, nodes.length - 1));
  host.addEventListener("keydown", (event) => {
    const at = chosen ?? -1, last = nodes.length - 1;
    const moves = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1,
      PageUp: at + 10, PageDown: at - 10, Home: 0, End: last };
    if (event.key in moves) choose(Math.max(0, Math.min(last, moves[event.key])));
    else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "Escape") zoomTo(0, last);
    else return;
    event.preventDefault();
  });
  document.getElementById("zoom-in").addEventListener("click", () => zoom(0.5));
  document.getElementById("zoom-out").addEventListener("click", () => zoom(2));
  document.getElementById("zoom-all").addEventListener("click", () => zoomTo(0, nodes.length - 1));
  new ResizeObserver(() => { if (host.clientWidth && host.clientWidth !== width) draw(); }).observe(host);
  draw();

  return {
    show(index) {
      chosen = index;
      const span = view[1] - view[0];
      if (index < view[0] || index > view[1]) zoomTo(index - span / 2, index + span / 2);
      const node = nodes[index];
      host.setAttribute("aria-valuenow", index + 1);
      host.setAttribute("aria-valuetext",
        `${node.name}, ${node.op}, accumulated ${decibels(node.sqnr)} dB, alone ${decibels(node.alone)} dB`);
      drawOverlay();
    },
  };
}

const finiteOr = (value, other) => (value !== null && Number.isFinite(value) ? value : other);
const clampedTop = (value) => Math.min(80, finiteOr(value, 0));
