// The front of a tuning run: cost against the drop of the metric, with intervals.

const FRONT = { height: 280, left: 58, right: 24, top: 26, bottom: 40 };

function makeFront(host, found) {
  const plot = svg("svg", { "aria-hidden": "true" });
  const tip = html("div", { class: "tip", "aria-hidden": "true", hidden: "" });
  host.append(plot, tip);
  const evaluated = found.points.map((point, index) => ({ ...point, index })).filter((point) => point.drop !== null);
  const unknown = found.points.filter((point) => point.drop === null);
  const final = found.final;
  const budget = found.max_size ?? null;
  const costs = [...found.points.map((point) => point.cost), found.float_cost, ...(budget === null ? [] : [budget])];
  const ends = (point) => (point.interval ?? [point.drop, point.drop]);
  const drops = [0, found.max_drop, ...evaluated.flatMap(ends), ...(final ? ends(final) : [])];
  const [low, high] = padded(Math.min(...drops), Math.max(...drops));
  const [least, most] = padded(Math.min(...costs), Math.max(...costs));

  function draw() {
    const width = Math.max(host.clientWidth, 280);
    plot.setAttribute("viewBox", `0 0 ${width} ${FRONT.height}`);
    const base = FRONT.height - FRONT.bottom;
    const xOf = scaleOf(least, most, FRONT.left, width - FRONT.right);
    const yOf = scaleOf(low, high, base, FRONT.top);
    const bar = (x, [from, to], style) => svg("path", { class: style,
      d: `M${x} ${yOf(from)}V${yOf(to)}M${x - 4} ${yOf(from)}h8M${x - 4} ${yOf(to)}h8` });
    const chosen = found.points[found.chosen];
    const marks = evaluated.map((point) => {
      const x = xOf(point.cost), y = yOf(point.drop);
      const shape = point.index === found.chosen
        ? svg("circle", { class: "ring", cx: x, cy: y, r: 7 }) : svg("path", { class: "dots", d: `M${x} ${y}h0` });
      return svg("g", { class: "mark-point", "data-index": point.index },
        point.interval ? bar(x, point.interval, "spread") : null, shape);
    });
    if (final && chosen) {
      const x = xOf(chosen.cost) + 12, y = yOf(final.drop);
      marks.push(svg("g", {}, final.interval ? bar(x, final.interval, "spread") : null,
        svg("path", { class: "final", d: `M${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}L${x - 5} ${y}Z` })));
    }
    plot.replaceChildren(
      ...ticksBetween(low, high, 5).map((level) => svg("g", {},
        svg("path", { class: "gridline", d: `M${FRONT.left} ${yOf(level)}H${width - FRONT.right}` }),
        svg("text", { x: FRONT.left - 8, y: yOf(level) + 4, "text-anchor": "end" }, significant(level)))),
      svg("text", { x: 0, y: 12 }, `drop of ${found.metric}`),
      svg("path", { class: "baseline", d: `M${FRONT.left} ${base}H${width - FRONT.right}` }),
      ...ticksBetween(least, most, Math.max(3, width / 140)).map((cost) =>
        svg("text", { x: xOf(cost), y: base + 18, "text-anchor": "middle" }, significant(cost / found.unit_size))),
      svg("text", { x: width - FRONT.right, y: base + 36, "text-anchor": "end" }, `cost, ${found.unit}`),
      svg("path", { class: "allowed", d: `M${FRONT.left} ${yOf(found.max_drop)}H${width - FRONT.right}`
        + (budget === null ? "" : `M${xOf(budget)} ${FRONT.top}V${base}`) }),
      svg("path", { class: "ticks", d: unknown.map((point) => `M${xOf(point.cost)} ${base}v-7`).join("") }),
      svg("path", { class: "point", d: `M${xOf(found.float_cost) - 4} ${yOf(0) - 4}h8v8h-8Z` }),
      svg("text", { x: xOf(found.float_cost) - 8, y: yOf(0) - 8, "text-anchor": "end" }, found.float_name),
      ...marks,
    );
    for (const mark of plot.querySelectorAll("[data-index]")) {
      mark.addEventListener("pointerenter", () => show(found.points[Number(mark.dataset.index)], xOf));
      mark.addEventListener("pointerleave", () => { tip.hidden = true; });
    }
  }

  function show(point, xOf) {
    tip.hidden = false;
    tip.replaceChildren(html("b", {}, point.cost_text), `drop ${significant(point.drop)} (${point.interval_text})`, html("br"),
      `${point.changed} units changed`);
    tip.style.left = `${Math.min(xOf(point.cost) + 14, host.clientWidth - 200)}px`;
    tip.style.top = "28px";
  }

  new ResizeObserver(() => draw()).observe(host);
  draw();
}

/** Returns a range with room around it. */
function padded(low, high) {
  const room = 0.08 * (high - low || Math.abs(high) || 1);
  return [low - room, high + room];
}
