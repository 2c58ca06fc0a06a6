// The table of nodes: sorted, searched, and drawn only where it is looked at.

const ROW = 30, LINE = 16; // pixels of a row, and of each more line of a name; the style sheet has the same
const LETTER = 7.6; // pixels of a letter of a name
const SPARE = 10; // rows drawn beyond the edges
const TALLEST = 800; // pixels of the frame at most; the style sheet has the same

// In the table: key, heading, width, how a value is shown, what makes it bad.
const COLUMNS = [
  { key: "place", title: "#", width: "place rare", number: true, show: (n) => whole(n.place + 1), tip: "Place in the graph" },
  { key: "name", title: "Node", show: (n) => n.name, tip: "Name of the node" },
  { key: "op", title: "Op", width: "op", show: (n) => n.op, tip: "Op type" },
  { key: "state", title: "State", width: "state rare", show: (n) => (n.quantized ? n.type || "quantized" : "float"), tip: "Number type of its result, or float" },
  { key: "alone", title: "Alone", width: "figure", number: true, show: (n) => decibels(n.alone), bad: (n) => n.mostSensitive, tip: "SQNR in dB with this node alone quantized; each channel counts alike" },
  { key: "sqnr", title: "SQNR", width: "figure", number: true, show: (n) => decibels(n.sqnr), tip: "SQNR in dB with everything quantized" },
  { key: "cosine", title: "Cosine", width: "figure rare", number: true, show: (n) => (n.cosine === null ? "–" : n.cosine.toFixed(4)), tip: "Cosine of the angle to the float result" },
  { key: "error", title: "Max err", width: "wide rare", number: true, show: (n) => significant(n.error), tip: "Largest difference from the float result" },
  { key: "saturated", title: "Clipped", width: "portion rare", number: true, show: (n) => percent(n.saturated), bad: (n) => n.saturated > 0.01, tip: "Share of values at the ends of the integer range" },
  { key: "used", title: "Used", width: "portion rare", number: true, show: (n) => percent(n.used), tip: "Share of the integer range between the smallest and largest value seen" },
];

function makeTable(nodes, choose) {
  const frame = document.getElementById("frame");
  const grid = document.getElementById("grid");
  const body = grid.tBodies[0];
  const search = document.getElementById("search");
  const status = document.getElementById("status");
  const count = document.getElementById("count");
  let order = { key: "place", up: true };
  let rows = nodes;
  let chosen = null;
  let drawn = "";
  let tall = ROW; // every row is as tall as the longest name needs, so that none is cut
  let wide = 60; // pixels of the names' column

  const linesOf = (name) => wrapName(name, (text) => text.length * LETTER, wide, Math.floor(wide / LETTER));

  function measureRows() {
    wide = Math.max(grid.tHead.rows[0].cells[1].offsetWidth - 16, 60);
    let most = 1;
    // A name that is shorter than a line needs no more than one: most of them are not looked at.
    for (const node of nodes) if (node.name.length * LETTER > wide) most = Math.max(most, linesOf(node.name).length);
    tall = ROW + LINE * (most - 1);
    grid.style.setProperty("--row", `${tall}px`);
    drawn = "";
  }

  const sortKey = (node, key) => (key === "state" ? String(COLUMNS[3].show(node)) : node[key]);
  function compare(a, b) {
    const [x, y] = [sortKey(a, order.key), sortKey(b, order.key)];
    // What was not measured comes last, whichever way the rest is turned.
    if (x === null || y === null) return (x === null) - (y === null) || a.place - b.place;
    const result = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x < y ? -1 : x > y ? 1 : 0;
    return (order.up ? result : -result) || a.place - b.place;
  }

  function refresh(keepPlace = false) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows = nodes.filter((node) =>
      (status.value === "all" || (status.value === "quantized") === node.quantized) &&
      words.every((word) => node.text.includes(word)));
    rows.sort(compare);
    count.textContent = rows.length === nodes.length ? `${whole(nodes.length)} nodes` : `${whole(rows.length)} of ${whole(nodes.length)}`;
    grid.setAttribute("aria-rowcount", rows.length + 1);
    if (!keepPlace) frame.scrollTop = 0;
    drawn = "";
    draw();
  }

  function draw() {
    const first = Math.max(0, Math.floor(frame.scrollTop / tall) - SPARE);
    const room = Math.max(frame.clientHeight, TALLEST); // it grows with its rows, up to that
    const last = Math.min(rows.length, Math.ceil((frame.scrollTop + room) / tall) + SPARE);
    const key = `${first}-${last}-${chosen}`;
    if (key === drawn) return;
    drawn = key;
    const shown = rows.slice(first, last).map((node, offset) => rowOf(node, first + offset));
    if (!rows.length) shown.push(html("tr", { class: "empty" }, html("td", { colspan: shownColumns() }, "No node matches.")));
    body.replaceChildren(spacer(first), ...shown, spacer(rows.length - last));
    const active = shown.some((row) => row.id === `row-${chosen}`);
    if (active) grid.setAttribute("aria-activedescendant", `row-${chosen}`);
    else grid.removeAttribute("aria-activedescendant");
  }

  const shownColumns = () => [...grid.tHead.rows[0].cells].filter((cell) => cell.offsetWidth).length;

  function spacer(count) {
    const cell = html("td"); // one cell: with a span, hidden columns would take their room
    cell.style.height = `${count * tall}px`;
    const row = html("tr", { class: "spacer", "aria-hidden": "true" }, cell);
    row.hidden = count <= 0;
    return row;
  }

  /** Returns the text of a cell: names may break where their lines end, ops between their words; what is copied is whole. */
  function breakable(key, text) {
    const parts = key === "name" ? linesOf(text) : key === "op" ? text.split(/(?<=[a-z0-9])(?=[A-Z])/) : [text];
    return parts.flatMap((part, index) => (index ? [html("wbr"), part] : [part]));
  }

  function rowOf(node, position) {
    return html("tr", { id: `row-${node.place}`, "data-place": node.place, "aria-rowindex": position + 2,
      "aria-selected": String(node.place === chosen) },
      ...COLUMNS.map((column) => {
        const styles = [column.number && "number", (column.key === "name" || column.key === "op") && column.key, column.width?.includes("rare") && "rare",
          column.bad?.(node) && "bad", column.key === "state" && !node.quantized && "quiet"].filter(Boolean);
        return html("td", { class: styles.join(" ") || null, role: "gridcell" }, ...breakable(column.key, column.show(node)));
      }));
  }

  function makeHead() {
    const cells = COLUMNS.map((column) => html("th", { scope: "col",
      class: [column.number && "number", column.width?.includes("rare") && "rare"].filter(Boolean).join(" ") || null,
      "data-key": column.key }, html("button", { type: "button", title: column.tip, onclick: () => sortBy(column.key) }, column.title)));
    grid.prepend(html("colgroup", {}, ...COLUMNS.map((column) => html("col", { class: column.width ?? null }))));
    grid.tHead.replaceChildren(html("tr", { "aria-rowindex": 1 }, ...cells));
  }

  function sortBy(key, up = order.key === key ? !order.up : true) {
    order = { key, up };
    for (const cell of grid.tHead.rows[0].cells) {
      if (cell.dataset.key === key) cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
    refresh();
  }

  function reveal(position) {
    const y = position * tall, room = frame.clientHeight - grid.tHead.offsetHeight;
    if (y < frame.scrollTop) frame.scrollTop = y;
    else if (y + tall > frame.scrollTop + room) frame.scrollTop = y + tall - room;
  }

  frame.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-place]");
    if (row) choose(Number(row.dataset.place));
  });
  grid.addEventListener("keydown", (event) => {
    if (event.target !== grid || !rows.length) return;
    const at = rows.findIndex((node) => node.place === chosen), page = Math.floor(frame.clientHeight / tall) - 2;
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: rows.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(rows[Math.max(0, Math.min(rows.length - 1, moves[event.key]))].place);
  });
  search.addEventListener("input", () => refresh());
  status.addEventListener("change", () => refresh());
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  new ResizeObserver(() => { measureRows(); draw(); }).observe(frame);
  makeHead();
  measureRows();

  return {
    sortBy,
    find(text) {
      search.value = text;
      status.value = "all";
      refresh();
    },
    show(place) {
      chosen = place;
      const position = rows.findIndex((node) => node.place === place);
      if (position >= 0) reveal(position);
      draw();
    },
  };
}
