// The graph: a layered drawing of the nodes, coloured by error. Positions come from dagre, which is
// parsed when the drawing is first looked at; of a large graph a part is drawn, or groups of nodes.

const GRAPH = { near: 40, far: 150, whole: 300, groups: 150, widest: 230, line: 15, pad: 9, strip: 880, least: 0.05, most: 3 };
const LEVELS = [10, 20, 30, 40]; // dB; the legend and the style sheet have the same steps

/** Returns the class of a node by its error; the style sheet gives it a colour. */
function levelOf(node, key) {
  if (!node.quantized) return "left-float";
  const value = node[key];
  return value === null ? "unmeasured" : `level-${LEVELS.filter((level) => value >= level).length}`;
}

/** Returns runs of nodes next to each other: by the scopes in their names, or of equal length. */
function groupNodes(nodes, most) {
  const scopes = nodes.map((node) => node.name.split(/[/.]/).filter(Boolean).slice(0, -1));
  const runs = (depth) => {
    const found = [];
    nodes.forEach((node, place) => {
      const name = scopes[place].slice(0, depth).join("/");
      if (found.length && found.at(-1).name === name) found.at(-1).places.push(place);
      else found.push({ name, places: [place] });
    });
    return found;
  };
  const deepest = Math.max(0, ...scopes.map((scope) => scope.length));
  for (let depth = deepest; depth > 0; depth--) {
    const found = runs(depth);
    if (found.length <= most && found.length >= most / 15) return found;
  }
  const size = Math.ceil(nodes.length / most);
  return Array.from({ length: Math.ceil(nodes.length / size) }, (_, at) => {
    const places = nodes.slice(at * size, (at + 1) * size).map((node) => node.place);
    return { name: "", places };
  });
}

/** Returns the nodes that are reached in the fewest steps, either way along the edges; those that work out sizes and
 * indices only if asked for. */
function nodesAround(place, nodes, readers, most, withSizes) {
  const found = new Set([place]);
  for (const at of found) {
    for (const next of [...nodes[at].reads, ...readers[at]]) {
      if (found.size >= most) return [...found].sort((a, b) => a - b);
      if (withSizes || !nodes[next].sizes) found.add(next);
    }
  }
  return [...found].sort((a, b) => a - b);
}

/** Returns a name in lines of at most a width, broken where its parts end, and nothing left out; parts that are wider are
 * broken after so many letters. */
function wrapName(name, measure, widest, letters = 24) {
  const lines = [""];
  for (const part of name.match(/[^/._\-:]+[/._\-:]*|[/._\-:]+/g) ?? [name]) {
    for (const piece of measure(part) > widest ? part.match(new RegExp(`.{1,${letters}}`, "gu")) : [part]) {
      if (lines.at(-1) && measure(lines.at(-1) + piece) > widest) lines.push("");
      lines[lines.length - 1] += piece;
    }
  }
  return lines;
}

function makeGraph(section, nodes, readers, library, choose) {
  const host = section.querySelector("#drawing");
  const part = section.querySelector("#graph-part");
  const colour = section.querySelector("#graph-colour");
  const search = section.querySelector("#graph-search");
  const matches = section.querySelector("#graph-matches");
  const plot = svg("svg", { "aria-hidden": "true" });
  const scene = svg("g");
  const pen = document.createElement("canvas").getContext("2d");
  const font = getComputedStyle(host).getPropertyValue("--label-font");
  const measure = (text) => pen.measureText(text).width;
  pen.font = `600 ${font}`; // the wider of the two
  const groups = nodes.length > GRAPH.whole ? groupNodes(nodes, GRAPH.groups) : null;
  let dagre = null;
  let chosen = 0;
  let drawn = ""; // what is laid out: the part, and the node in its middle
  let boxes = new Map(); // place of a node or of a group -> { x, y, width, height, element }
  let size = { width: 1, height: 1 };
  let at = { scale: 1, x: 0, y: 0 };
  let visible = false;
  let drag = null;
  let zoomed = false;

  plot.append(svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerUnits: "userSpaceOnUse", markerWidth: 8, markerHeight: 8, orient: "auto" },
    svg("path", { class: "arrow", d: "M0 0.5L7.5 4L0 7.5z" }))), scene);
  host.append(plot);
  if (groups) part.querySelector("[value=all]").textContent = "Whole graph, in groups";
  part.value = nodes.length <= GRAPH.near ? "all" : "near";

  const inGroups = () => groups !== null && part.value === "all";
  const groupOf = (place) => groups.findIndex(({ places }) => place <= places.at(-1));

  /** Returns what is drawn: its key, its lines of text, its class, and what it reads. */
  function partsToDraw() {
    if (inGroups()) {
      return groups.map(({ name, places }, key) => {
        const worst = worstOf(places);
        const reads = new Set(places.flatMap((place) => nodes[place].reads).map(groupOf));
        reads.delete(key);
        const title = name || (places.length > 1 ? `nodes ${whole(places[0] + 1)} to ${whole(places.at(-1) + 1)}` : nodes[places[0]].name);
        const worth = nodes[worst][colour.value];
        const note = `${places.length === 1 ? nodes[worst].op : `${whole(places.length)} nodes`}${worth === null ? "" : ` · worst ${decibels(worth)} dB`}`;
        return { key, reads: [...reads], title, note, level: levelOf(nodes[worst], colour.value), hint: `${title}: ${note}` };
      });
    }
    const shown = part.value === "all" ? nodes.map((node) => node.place)
      : nodesAround(chosen, nodes, readers, part.value === "near" ? GRAPH.near : GRAPH.far, part.value === "far");
    return shown.map((place) => {
      const node = nodes[place], worth = node[colour.value];
      const state = node.quantized ? (worth === null ? "" : ` · ${decibels(worth)} dB`) : " · float";
      const away = [...node.reads, ...readers[place]].some((next) => !shown.includes(next));
      return { key: place, reads: node.reads, title: node.name, note: `${node.op}${state}`, away, level: levelOf(node, colour.value),
        hint: `${node.name}\n${node.op}, ${node.quantized ? `quantized${node.type ? ` to ${node.type}` : ""}` : `left float: ${node.reason ?? "no reason given"}`}\nalone ${decibels(node.alone)} dB, accumulated ${decibels(node.sqnr)} dB` };
    });
  }

  const worstOf = (places) => places.reduce((best, place) => {
    const [a, b] = [best, place].map((one) => (nodes[one].quantized ? nodes[one][colour.value] : null) ?? Infinity);
    return b < a ? place : best;
  });

  function draw() {
    if (!visible || !nodes.length) return;
    const key = `${part.value} ${colour.value} ${part.value === "all" ? "" : chosen}`;
    if (key !== drawn) {
      drawn = key;
      layOut(partsToDraw());
    }
    mark();
    reveal();
  }

  function layOut(found) {
    dagre ??= loadLibrary(library);
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 30, edgesep: 10, marginx: 8, marginy: 8 });
    graph.setDefaultEdgeLabel(() => ({}));
    const keys = new Set(found.map((one) => one.key));
    for (const one of found) {
      one.lines = wrapName(one.title, measure, GRAPH.widest);
      const wide = Math.max(...one.lines.map(measure), measure(one.note));
      graph.setNode(String(one.key), { width: Math.ceil(wide) + 2 * GRAPH.pad, height: (one.lines.length + 1) * GRAPH.line + 2 * GRAPH.pad - 3 });
    }
    for (const one of found) {
      for (const source of one.reads) if (keys.has(source)) graph.setEdge(String(source), String(one.key));
    }
    dagre.layout(graph);
    size = graph.graph();
    boxes = new Map();
    const edges = graph.edges().map((edge) => svg("path", { class: "edge", "data-from": edge.v, "data-to": edge.w, "marker-end": "url(#arrow)", d: curve(graph.edge(edge).points) }));
    const drawnNodes = found.map((one) => {
      const box = graph.node(String(one.key)), left = box.x - box.width / 2, top = box.y - box.height / 2;
      const texts = [...one.lines, one.note].map((text, line) => svg("text", { class: line === one.lines.length ? "unit-note" : "unit-name",
        x: left + GRAPH.pad, y: top + GRAPH.pad + 9 + line * GRAPH.line }, text));
      const element = svg("g", { class: `unit ${one.level}${one.away ? " away" : ""}${inGroups() ? " group" : ""}`, "data-key": one.key },
        svg("title", {}, one.hint), svg("rect", { x: left, y: top, width: box.width, height: box.height, rx: 4 }), ...texts);
      boxes.set(one.key, { ...box, element });
      return element;
    });
    scene.replaceChildren(...edges, ...drawnNodes);
    if (!zoomed) fit(); // who has zoomed stays there
  }

  /** Shows which node is chosen, its neighbours, and what the search finds. */
  function mark() {
    const key = inGroups() ? groupOf(chosen) : chosen;
    const near = inGroups() ? [] : [...nodes[chosen].reads, ...readers[chosen]];
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = words.length ? nodes.filter((node) => words.every((word) => node.text.includes(word))).map((node) => node.place) : [];
    const hitKeys = new Set(inGroups() ? hits.map(groupOf) : hits);
    for (const [one, { element }] of boxes) {
      element.classList.toggle("picked", one === key);
      element.classList.toggle("near", near.includes(one));
      element.classList.toggle("found", hitKeys.has(one));
    }
    for (const edge of scene.querySelectorAll(".edge")) {
      edge.classList.toggle("near", Number(edge.dataset.from) === key || Number(edge.dataset.to) === key);
    }
    matches.textContent = words.length ? `${whole(hits.length)} found` : "";
    return hits;
  }

  const room = () => ({ width: Math.max(host.clientWidth, 1), height: Math.max(host.clientHeight, 1) });
  function place() {
    scene.setAttribute("transform", `translate(${at.x.toFixed(1)} ${at.y.toFixed(1)}) scale(${at.scale.toFixed(4)})`);
  }
  function fit(smallest = 0.8) {
    const { width, height } = room();
    zoomed = false;
    at.scale = Math.max(smallest, Math.min(1, width / size.width, height / size.height));
    at.x = (width - size.width * at.scale) / 2;
    at.y = Math.max(0, (height - size.height * at.scale) / 2);
    place();
  }
  /** Moves the chosen node into view, and to the middle if it was far out. */
  function reveal() {
    const box = boxes.get(inGroups() ? groupOf(chosen) : chosen);
    if (!box) return;
    const { width, height } = room(), x = box.x * at.scale + at.x, y = box.y * at.scale + at.y;
    const [half, tall] = [(box.width / 2) * at.scale + 8, (box.height / 2) * at.scale + 8];
    if (x - half < 0 || x + half > width) at.x += width / 2 - x;
    if (y - tall < 0 || y + tall > height) at.y += height / 2 - y;
    // No empty room beyond an end of the graph while there is more of it at the other.
    const keepIn = (start, long, space) => (long > space ? Math.min(0, Math.max(space - long, start)) : start);
    at.x = keepIn(at.x, size.width * at.scale, width);
    at.y = keepIn(at.y, size.height * at.scale, height);
    place();
  }
  function zoom(factor, x = room().width / 2, y = room().height / 2) {
    zoomed = true;
    const scale = Math.min(GRAPH.most, Math.max(GRAPH.least, at.scale * factor));
    at = { scale, x: x - ((x - at.x) * scale) / at.scale, y: y - ((y - at.y) * scale) / at.scale };
    place();
  }
  function move(x, y) {
    at.x += x;
    at.y += y;
    place();
  }

  /** Cuts the drawing between its layers into strips that stand side by side on paper. */
  function printStrips() {
    const spans = [...boxes.values()].map(({ y, height }) => [y - height / 2, y + height / 2]);
    const strips = section.querySelector("#strips");
    strips.replaceChildren();
    for (let from = 0; from < size.height;) {
      let to = Math.min(from + GRAPH.strip, size.height);
      // A box that is cut begins the next strip, unless it is as tall as a whole one.
      for (let cut; (cut = spans.find(([top, bottom]) => top < to && bottom > to && top > from + 1));) to = cut[0];
      const strip = svg("svg", { viewBox: `0 ${from} ${size.width} ${to - from}` }, ...[...scene.children].map((child) => child.cloneNode(true)));
      strip.style.width = `${size.width}px`;
      strips.append(strip);
      from = to;
    }
  }

  function open(key) {
    if (!inGroups()) return choose(key);
    part.value = "far";
    choose(worstOf(groups[key].places));
  }

  /** Returns the node beside another in its layer, or the nearest of those that it reads or feeds. */
  function neighbour(key) {
    const from = boxes.get(chosen);
    if (!from || inGroups()) return null;
    const level = (box) => Math.abs(box.y - from.y) < 1;
    const far = (one) => Math.hypot(boxes.get(one).x - from.x, 4 * (boxes.get(one).y - from.y)); // layers count most
    const nearest = (places) => places.filter((one) => boxes.has(one)).sort((a, b) => far(a) - far(b))[0];
    if (key === "ArrowUp") return nearest(nodes[chosen].reads);
    if (key === "ArrowDown") return nearest(readers[chosen]);
    const side = key === "ArrowLeft" ? (box) => box.x < from.x : (box) => box.x > from.x;
    return nearest([...boxes.keys()].filter((one) => level(boxes.get(one)) && side(boxes.get(one))));
  }

  const inside = (event) => { const box = plot.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  host.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.clientX, y: event.clientY, moved: false, key: event.target.closest?.(".unit")?.dataset.key };
    host.setPointerCapture(event.pointerId);
  });
  host.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(x, y) < 5) return;
    drag = { ...drag, x: event.clientX, y: event.clientY, moved: true };
    move(x, y);
  });
  host.addEventListener("pointerup", () => {
    const { moved, key } = drag ?? {};
    drag = null;
    if (!moved && key !== undefined) open(Number(key));
  });
  host.addEventListener("pointercancel", () => { drag = null; });
  host.addEventListener("wheel", (event) => {
    // Without a key the wheel scrolls the page, which a picture in its middle must not stop.
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / (event.deltaMode ? 20 : 300)), ...inside(event));
  }, { passive: false });
  host.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") zoom(1.4);
    else if (event.key === "-") zoom(1 / 1.4);
    else if (event.key === "0" || event.key === "Escape") fit(GRAPH.least);
    else if (event.key.startsWith("Arrow")) {
      const next = neighbour(event.key);
      if (next !== undefined && next !== null) choose(next);
    } else return;
    event.preventDefault();
  });
  section.querySelector("#graph-in").addEventListener("click", () => zoom(1.4));
  section.querySelector("#graph-out").addEventListener("click", () => zoom(1 / 1.4));
  section.querySelector("#graph-fit").addEventListener("click", () => fit(GRAPH.least));
  part.addEventListener("change", draw);
  colour.addEventListener("change", draw);
  search.addEventListener("input", mark);
  section.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const hits = mark();
    if (hits.length) choose(hits.find((hit) => hit > chosen) ?? hits[0]);
  });
  const show = () => { visible = true; draw(); };
  new IntersectionObserver((seen, observer) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    observer.disconnect();
    show();
  }, { rootMargin: "400px" }).observe(host);
  new ResizeObserver(() => { if (visible && drawn) reveal(); }).observe(host);
  addEventListener("beforeprint", () => { show(); printStrips(); });

  return {
    show(place) {
      chosen = place;
      draw();
    },
  };
}

/** Runs a script that the page carries as text; its hash is one that the page's policy allows. */
function loadLibrary(holder) {
  const script = html("script");
  script.textContent = holder.textContent;
  document.head.append(script);
  return globalThis.dagre;
}

/** Returns a smooth path through points that stays within their corners. */
function curve(points) {
  const at = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  const middle = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  let path = `M${at(points[0])}`;
  for (let i = 1; i < points.length - 1; i++) {
    const end = i === points.length - 2 ? points[i + 1] : middle(points[i], points[i + 1]);
    path += `Q${at(points[i])} ${at(end)}`;
  }
  return points.length === 2 ? `${path}L${at(points[1])}` : path;
}
