// Brings the page to life: reads the data, builds the three views, and keeps them on one node.

const report = JSON.parse(document.getElementById("report-data").textContent);
const mostSensitive = new Set(report.most_sensitive);
const allNodes = report.nodes.map((node, place) => {
  const outputs = node.tensors.filter(([label]) => label.startsWith("output")).map(([, index]) => report.tensors[index]);
  return {
    ...node, place, mostSensitive: mostSensitive.has(place), type: outputs[0]?.type,
    sqnr: numeric(node.sqnr), alone: numeric(node.alone), energy: numeric(node.energy), cosine: numeric(node.cosine), error: numeric(node.error),
    text: `${node.name} ${node.op} ${node.reason ?? ""} ${node.unmeasured ?? ""} ${node.output}`.toLowerCase(),
  };
});

document.documentElement.classList.add("live");
const parts = [];
function choose(place) {
  for (const part of parts) part.show(place);
  const node = allNodes[place];
  announce(`${node.name}, ${node.op}, ${node.quantized ? `alone ${decibels(node.alone)} dB` : "left float"}, accumulated ${decibels(node.sqnr)} dB`);
}

const table = makeTable(allNodes, choose);
parts.push(makeChart(document.getElementById("plot"), allNodes, report.most_sensitive, choose), table,
  makeDetail(document.getElementById("detail"), report, allNodes));
table.sortBy("place", true);
if (allNodes.length) choose(report.most_sensitive[0] ?? report.worst[0] ?? 0);

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
