// The selected node: its figures, and for each of its tensors the values with the chosen range.

const PICTURE = { width: 372, height: 132, left: 4, right: 4, top: 18, bottom: 22 };

function makeDetail(host, report, nodes, readers, linkTo, choose) {
  return {
    show(place) {
      const node = nodes[place];
      const fact = (name, text, bad) => html("div", {}, html("dt", {}, name), html("dd", { class: bad ? "bad" : null }, text));
      const exclude = copies(html("button", { type: "button" }, "Copy --exclude"), () => `--exclude ${shellQuoted(node.name)}`);
      const link = copies(html("button", { type: "button" }, "Copy link"), () => location.href.replace(/#.*/, "") + linkTo(place));
      const inFile = node.file.map(([name, op]) => `${op} ${name || "(no name)"}`);
      const shown = [
        html("h3", { class: "name" }, node.name),
        html("p", { class: "kind" }, node.quantized ? `${node.op}, quantized` : `${node.op}, left float: ${node.reason || "no reason given"}`),
        node.unmeasured ? html("p", { class: "kind" }, `Not compared: ${node.unmeasured}.`) : null,
        inFile.length ? html("p", { class: "kind in-file" }, `In the file: ${inFile.join(", ")}.`) : null,
        node.facts.length ? html("p", { class: "kind attributes" }, node.facts.map(([name, value]) => `${name} ${value}`).join(" · ")) : null,
        html("dl", { class: "facts" },
          fact("Alone", withUnit(decibels(node.alone)), node.mostSensitive),
          fact("Accumulated", withUnit(decibels(node.sqnr))),
          fact("Alone, by energy", withUnit(decibels(node.energy))),
          fact("Cosine", node.cosine === null ? "–" : node.cosine.toFixed(5)),
          fact("Max error", significant(node.error)),
          fact("Clipped", percent(node.saturated), node.saturated > 0.01),
          node.regained === null ? null : fact("Fallback regains", percent(Math.max(node.regained, 0)))),
        html("div", { class: "tools" }, ...(node.quantized ? [exclude] : []), link),
        neighbours("Reads", node.reads, nodes, choose),
        neighbours("Read by", readers[place], nodes, choose),
        ...node.tensors.map(([label, index]) => tensorView(label, report.tensors[index])),
      ];
      host.replaceChildren(...shown.filter((part) => part !== null));
      if (!node.tensors.length) host.append(html("p", { class: "empty" }, "No quantized tensor belongs to this node."));
      host.scrollTop = 0;
    },
  };
}

/** Returns the names of neighbours, each of which selects its node. */
function neighbours(label, places, nodes, choose) {
  if (!places.length) return null;
  return html("p", { class: "neighbours" }, html("b", {}, label), ...places.slice(0, 12).flatMap((place) => [" ",
    html("button", { type: "button", onclick: () => choose(place) }, nodes[place].name)]),
    places.length > 12 ? ` and ${whole(places.length - 12)} more` : null);
}

const withUnit = (text) => (/\d/.test(text) ? `${text} dB` : text);
const shellQuoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
const span = ([low, high], digits) =>
  low === high ? significant(low, digits) : `${significant(low, digits)} … ${significant(high, digits)}`;

function tensorView(label, tensor) {
  const facts = [tensor.type];
  if (tensor.scale) facts.push(`scale ${span(tensor.scale, 4)}`, `zero point ${span(tensor.zero, 6)}`);
  if (tensor.scales > 1) facts.push(`${whole(tensor.scales)} scales`);
  if (tensor.method) facts.push(tensor.method);
  const parts = [html("h3", {}, html("span", { class: "label" }, label), html("span", { class: "mono" }, tensor.name))];
  if (tensor.histogram) parts.push(histogramPicture(tensor));
  parts.push(html("p", {}, facts.join(" · ")));
  if (tensor.range) {
    const [low, high] = tensor.range.map((end) => significant(end, 4));
    const widest = tensor.scales > 1 ? "widest range" : "range";
    const cut = tensor.clipped === null ? "" : tensor.clipped > 0 ? `, ${percent(tensor.clipped)} of the values lie outside` : ", nothing lies outside";
    parts.push(html("p", { class: tensor.clipped > 0.01 ? "bad" : null }, `${widest} ${low} … ${high}${cut}`));
  }
  if (tensor.channels) {
    const { count, largest, middle, peak, unit } = tensor.channels;
    const times = middle > 0 ? (peak * unit) / middle : 1;
    parts.push(channelPicture(tensor.channels), html("p", { class: times > 8 ? "bad" : null },
      `largest value of each of ${whole(count)} channels; channel ${largest} has ${significant(times, 2)} times the middle one`));
  }
  return html("section", { class: "tensor", "aria-label": `${label} ${tensor.name}` }, ...parts);
}

/** The counts of the float values (logarithmic) with what the quantized type can hold. */
function histogramPicture(tensor) {
  const { histogram, range } = tensor;
  const counts = unpack(histogram.bins, histogram.peak);
  let [low, high] = [histogram.low, histogram.high];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const [from, to] = range ? [Math.min(low, range[0]), Math.max(high, range[1])] : [low, high];
  const room = (to - from) * 0.04 || 1;
  const x = scaleOf(from - room, to + room, PICTURE.left, PICTURE.width - PICTURE.right);
  const base = PICTURE.height - PICTURE.bottom;
  const y = scaleOf(0, Math.log1p(histogram.peak), 0, base - PICTURE.top);
  const binWidth = (high - low) / counts.length;
  const inside = [], outside = [];
  counts.forEach((value, bin) => {
    if (value <= 0) return;
    const start = low + bin * binWidth, middle = start + binWidth / 2;
    const tall = Math.max(1, y(Math.log1p(value)));
    const path = `M${x(start).toFixed(2)} ${base}v${(-tall).toFixed(1)}H${Math.max(x(start + binWidth) - 0.5, x(start) + 0.7).toFixed(2)}V${base}z`;
    (range && (middle < range[0] || middle > range[1]) ? outside : inside).push(path);
  });
  const ticks = ticksBetween(from, to, 4);
  const words = `Histogram of ${tensor.name} from ${significant(histogram.low)} to ${significant(histogram.high)}` +
    (range ? `, range ${significant(range[0])} to ${significant(range[1])}` : "");
  const picture = svg("svg", { viewBox: `0 0 ${PICTURE.width} ${PICTURE.height}`, role: "img", "aria-label": words });
  if (range) picture.append(svg("rect", { class: "inside", x: x(range[0]), y: PICTURE.top - 4, width: Math.max(1, x(range[1]) - x(range[0])), height: base - PICTURE.top + 4 }));
  picture.append(
    svg("path", { class: "bars", d: inside.join("") }),
    svg("path", { class: "bars cut", d: outside.join("") }),
    svg("path", { class: "baseline", d: `M${PICTURE.left} ${base}H${PICTURE.width - PICTURE.right}` }),
    ...ticks.map((tick) => svg("path", { class: "baseline", d: `M${x(tick)} ${base}v4` })),
    ...ticks.map((tick) => svg("text", { class: "small", x: x(tick), y: base + 16, "text-anchor": "middle" }, significant(Number(tick.toPrecision(6))))));
  if (range) {
    range.forEach((end, side) => {
      picture.append(svg("path", { class: "limit", d: `M${x(end)} ${PICTURE.top - 4}V${base}` }));
      picture.append(svg("text", { class: "limit-label", x: x(end), y: PICTURE.top - 8, "text-anchor": side ? "end" : "start" }, significant(end)));
    });
  }
  return picture;
}

/** The largest magnitude of each channel, logarithmic; those far above the middle stand out. */
function channelPicture(channels) {
  const values = unpack(channels.peaks, channels.peak).map((value) => value * channels.unit);
  const height = 64, base = 56;
  const present = values.filter((value) => value > 0);
  const low = Math.log10(Math.min(...present) / 2), high = Math.log10(Math.max(...present));
  const tall = scaleOf(low, Math.max(high, low + 1), 0, base - 6);
  const step = (PICTURE.width - PICTURE.left - PICTURE.right) / values.length;
  const usual = [], outstanding = [];
  values.forEach((value, index) => {
    if (value <= 0) return;
    const start = PICTURE.left + index * step;
    const path = `M${start.toFixed(2)} ${base}v${(-Math.max(1, tall(Math.log10(value)))).toFixed(1)}h${Math.max(step - 0.6, 0.8).toFixed(2)}V${base}z`;
    (value > 8 * channels.middle ? outstanding : usual).push(path);
  });
  return svg("svg", { viewBox: `0 0 ${PICTURE.width} ${height}`, role: "img", "aria-label": `Largest value of each of ${channels.count} channels` },
    svg("path", { class: "bars", d: usual.join("") }),
    svg("path", { class: "bars peak", d: outstanding.join("") }),
    svg("path", { class: "baseline", d: `M${PICTURE.left} ${base}H${PICTURE.width - PICTURE.right}` }));
}
