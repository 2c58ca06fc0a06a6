// Profile nets in onnxruntime-web (wasm with SIMD, one thread), for fit_costs_wasm.py.
//
//     node profile_wasm.mjs nets.json > profiles.txt
//
// nets.json: {"folder": where onnxruntime-web is installed, "seconds": each net is run for,
// "nets": [{"model": file, "inputs": {name: {"type", "dims", "file"}}, "profile": true or false}]}.
// The runtime, which has no file system here, prints the events of a net; a line {"wall", "version"}
// follows: milliseconds of whole runs.

import { readFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const { folder, seconds, nets } = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const found = createRequire(join(folder, "package.json")).resolve("onnxruntime-web");
const ort = (await import(pathToFileURL(found))).default;
ort.env.wasm.numThreads = 1;

const ARRAYS = { float32: Float32Array, uint8: Uint8Array };
const FEWEST_RUNS = 4;
const MOST_RUNS = 200;
// As in jobs/cost_table.py: a small net alone would find its weights in the caches.
const moreThanACache = new Float32Array(1 << 20).fill(1);
let sum = 0;

function readInput({ type, dims, file }) {
  const bytes = new Uint8Array(readFileSync(file));
  return new ort.Tensor(type, new ARRAYS[type](bytes.buffer), dims);
}

async function run(net) {
  const bytes = new Uint8Array(readFileSync(net.model));
  const options = {
    executionProviders: ["wasm"],
    enableProfiling: net.profile,
    logSeverityLevel: 3,
  };
  const session = await ort.InferenceSession.create(bytes, options);
  const inputs = Object.entries(net.inputs).map(([name, input]) => [name, readInput(input)]);
  const wall = [];
  const end = performance.now() + 1000 * seconds;
  while (wall.length < FEWEST_RUNS || (performance.now() < end && wall.length < MOST_RUNS)) {
    for (let i = 0; i < moreThanACache.length; i += 16) sum += moreThanACache[i];
    const start = performance.now();
    await session.run(Object.fromEntries(inputs));
    wall.push(performance.now() - start);
  }
  if (net.profile) session.endProfiling();
  await session.release();
  return wall.slice(1);
}

for (const net of nets) {
  const wall = await run(net);
  writeSync(1, JSON.stringify({ wall, version: ort.env.versions.web }) + "\n");
}
