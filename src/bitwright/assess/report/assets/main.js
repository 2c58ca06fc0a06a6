// Brings the page to life: reads the data, builds the three views, and keeps them on one node.

const report = JSON.parse(document.getElementById("report-data").textContent);
const mostSensitive = new Set(report.most_sensitive);
const allNodes = report.nodes.map((node, place) => {
  const outputs = node.tensors.filter(([label]) => label.startsWith("output")).map(([, index]) => report.tensors[index]);
  return {
    ...node, place, mostSensitive: mostSensitive.has(place), type: outputs[0]?.type,
    sqnr: numeric(node.sqnr), alone: numeric(node.alone), energy: numeric(node.energy), cosine: numeric(node.cosine), error: numeric(node.error),
    text: `${node.name} ${node.file.map((one) => one.join(" ")).join(" ")} ${node.op} ${node.reason ?? ""} ${node.unmeasured ?? ""} ${node.output}`.toLowerCase(),
  };
});

const readers = allNodes.map(() => []);
for (const node of allNodes) for (const source of node.reads) readers[source].push(node.place);

document.documentElement.classList.add("live");
const parts = [];
let linking = null;
const linkTo = (place) => `#node=${encodeURIComponent(allNodes[place].name)}`;
function choose(place, { link = true } = {}) {
  for (const part of parts) part.show(place);
  clearTimeout(linking); // a browser takes few addresses a second, and arrow keys are fast
  if (link) linking = setTimeout(() => history.replaceState(null, "", linkTo(place)), 250);
  const node = allNodes[place];
  announce(`${node.name}, ${node.op}, ${node.quantized ? `alone ${decibels(node.alone)} dB` : "left float"}, accumulated ${decibels(node.sqnr)} dB`);
}

const table = makeTable(allNodes, choose);
parts.push(makeChart(document.getElementById("plot"), allNodes, report.most_sensitive, choose), table,
  makeGraph(document.getElementById("graph"), allNodes, readers, document.getElementById("layout-library"), choose),
  makeDetail(document.getElementById("detail"), report, allNodes, readers, linkTo, choose));
table.sortBy("place", true);

/** Selects the node that the address names; returns whether it names one. */
function followLink() {
  const name = location.hash.startsWith("#node=") ? decodeURIComponent(location.hash.slice(6)) : null;
  const place = allNodes.findIndex((node) => node.name === name);
  if (place < 0) return false;
  table.find("");
  choose(place, { link: false });
  document.getElementById("nodes").scrollIntoView();
  return true;
}
addEventListener("hashchange", followLink);
if (!followLink() && allNodes.length) choose(report.most_sensitive[0] ?? report.worst[0] ?? 0, { link: false });

if (report.tuning) makeFront(document.getElementById("front"), report.tuning);

for (const button of document.querySelectorAll("button[data-copy]")) {
  copies(button, () => document.getElementById(button.dataset.copy).textContent);
}
for (const button of document.querySelectorAll("button[data-save]")) {
  button.addEventListener("click", () => saveFile(`${button.dataset.save}.json`, button.dataset.save === "plan" ? report.plan.json : report.recipe));
}
for (const button of document.querySelectorAll("button[data-choose]")) {
  button.addEventListener("click", () => {
    table.find("");
    choose(Number(button.dataset.choose));
    document.getElementById("nodes").scrollIntoView();
    document.getElementById("grid").focus({ preventScroll: true });
  });
}
for (const button of document.querySelectorAll("button[data-find]")) {
  button.addEventListener("click", () => {
    table.find(button.dataset.find);
    document.getElementById("nodes").scrollIntoView();
    document.getElementById("grid").focus({ preventScroll: true });
  });
}
document.documentElement.dataset.ready = String(Math.round(performance.now()));
