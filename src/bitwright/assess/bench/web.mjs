// The worker of one model in onnxruntime-web's WebAssembly, one thread. Calls and results are lines of
// JSON, as support/processes/client.py writes and reads them.
import { createRequire } from 'node:module';
import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { performance } from 'node:perf_hooks';

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, int8: Int8Array, uint8: Uint8Array,
  int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array,
  uint64: BigUint64Array, bool: Uint8Array,
};
const TYPES = { float32: 'float', float64: 'double' };

let ort, session, feeds, next = 0;

const resident = () => process.resourceUsage().maxRSS * 1024;

// What the process works, not what passes: other work on the machine does not count.
function secondsWorked() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

function describe({ name, type, shape }) {
  return { name, type: `tensor(${TYPES[type] ?? type})`, shape };
}

async function readTensor({ type, dims, file }) {
  const bytes = await readFile(file);
  const copy = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  return new ort.Tensor(type, new ARRAYS[type](copy), dims);
}

async function runOnce() {
  const begin = secondsWorked();
  await session.run(feeds[next++ % feeds.length]);
  return secondsWorked() - begin;
}

const methods = {
  async open({ model }) {
    ort = createRequire(`${process.cwd()}/`)('onnxruntime-web');
    ort.env.wasm.numThreads = 1;
    const before = resident(), begin = performance.now();
    session = await ort.InferenceSession.create(await readFile(model), { executionProviders: ['wasm'] });
    const seconds = (performance.now() - begin) / 1000;
    if (!session.inputMetadata) throw new Error('onnxruntime-web is too old; install 1.22 or later');
    const [inputs, outputs] = [session.inputMetadata, session.outputMetadata].map((all) => all.map(describe));
    return { seconds, memory_before: before, providers: [], inputs, outputs };
  },
  async load({ samples }) {
    const read = async (sample) =>
      Object.fromEntries(await Promise.all(
        Object.entries(sample).map(async ([name, tensor]) => [name, await readTensor(tensor)])));
    feeds = await Promise.all(samples.map(read));
  },
  async burst({ runs, seconds }) {
    const times = [], end = performance.now() + 1000 * seconds;
    await runOnce();  // caches hold what another model left there
    while (runs !== null ? times.length < runs : !times.length || performance.now() < end) {
      times.push(await runOnce());
    }
    return times;
  },
  async memory() {
    return { bytes: resident(), source: 'ru_maxrss' };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { method, arguments: given } = JSON.parse(line);
  if (!method) continue;  // where modules of Python lie
  let reply;
  try {
    reply = { result: (await methods[method](given)) ?? null };
  } catch (error) {
    reply = { error: `${error.message ?? error}`.split('\n')[0] };
  }
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
