"""npm's @huggingface/transformers loads what is published for it, by the names of its dtypes.

It runs where node is there and finds the package: NODE_PATH, or node_modules above this file.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from support.published import make_encoder_folder

from bitwright.api import publish

_NODE = shutil.which("node")
_SCRIPT = """
const { createRequire } = require('module');
const find = createRequire(process.argv[2] + '/');
(async () => {
  const { AutoModel, Tensor, env } = await import(find.resolve('@huggingface/transformers'));
  env.allowRemoteModels = false;
  env.localModelPath = process.argv[3];
  const ids = new Tensor('int64', [3n, 4n, 5n, 6n], [1, 4]);
  const mask = new Tensor('int64', [1n, 1n, 1n, 1n], [1, 4]);
  const found = {};
  for (const dtype of process.argv[4].split(',')) {
    const model = await AutoModel.from_pretrained('out', dtype === 'auto' ? {} : { dtype });
    const { last_hidden_state } = await model({ input_ids: ids, attention_mask: mask });
    found[dtype] = Array.from(last_hidden_state.data, Number);
  }
  console.log('FOUND ' + JSON.stringify(found));
})().catch((error) => { console.error(error); process.exit(1); });
"""


_WRITING = """
const { createRequire } = require('module');
const find = createRequire(process.argv[2] + '/');
(async () => {
  const { AutoModelForCausalLM, Tensor, env } =
    await import(find.resolve('@huggingface/transformers'));
  env.allowRemoteModels = false;
  env.localModelPath = process.argv[3];
  const inputs = new Tensor('int64', [5n, 17n, 90n, 44n], [1, 4]);
  const attention_mask = new Tensor('int64', [1n, 1n, 1n, 1n], [1, 4]);
  const asked = { inputs, attention_mask, max_new_tokens: 6, do_sample: false };
  const found = {};
  for (const dtype of process.argv[4].split(',')) {
    const model = await AutoModelForCausalLM.from_pretrained('out', { dtype });
    found[dtype] = Array.from((await model.generate(asked)).data, Number);
  }
  console.log('FOUND ' + JSON.stringify(found));
})().catch((error) => { console.error(error); process.exit(1); });
"""


def _package():
    """Return a folder from which node finds the package, or None."""
    given = [Path(p) for p in os.environ.get("NODE_PATH", "").split(os.pathsep) if p]
    folders = [*given, *(folder / "node_modules" for folder in Path(__file__).parents)]
    there = (f for f in folders if (f / "@huggingface" / "transformers").is_dir())
    return next(there, None)


needs_package = pytest.mark.skipif(
    _NODE is None or _package() is None, reason="needs node with @huggingface/transformers"
)


def _run(source, folder, dtypes):
    script = folder / "script.cjs"
    script.write_text(source)
    words = [_NODE, str(script), str(_package().parent), str(folder), ",".join(dtypes)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    line = next(line for line in ran.stdout.splitlines() if line.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))


@needs_package
def test_each_variant_loads_by_its_dtype_and_agrees_with_python(tmp_path):
    folder = make_encoder_folder(tmp_path / "encoder")
    dtypes = ["fp32", "fp16", "q8", "int8", "q4", "q4f16", "bnb4"]
    made = publish(folder, tmp_path / "out", variants=dtypes, reports=False)
    found = _run(_SCRIPT, tmp_path, dtypes)
    feeds = {"input_ids": np.array([[3, 4, 5, 6]]), "attention_mask": np.ones((1, 4), np.int64)}
    for one in made.written:
        (expected,) = ort.InferenceSession(tmp_path / "out" / one.file).run(None, feeds)
        np.testing.assert_allclose(found[one.variant], expected.ravel(), rtol=1e-2, atol=1e-2)
    assert set(found) == set(dtypes) == {one.variant for one in made.written}
    assert all(one.web is not None for one in made.written if one.level != "float")


@needs_package
@pytest.mark.filterwarnings("ignore")
def test_it_writes_on_with_caches_of_float16(tmp_path):
    pytest.importorskip("torch")
    from support.exported_folders import make_decoder_only

    dtypes = ["fp32", "fp16", "q8", "q4", "q4f16"]
    folder = make_decoder_only(tmp_path / "decoder")
    made = publish(folder, tmp_path / "out", variants=dtypes, reports=False)
    found = _run(_WRITING, tmp_path, dtypes)
    assert {len(tokens) for tokens in found.values()} == {10}
    assert found["fp16"] == found["fp32"]
    for one in made.written:
        session = ort.InferenceSession(tmp_path / "out" / one.file)
        kinds = {value.type for value in session.get_inputs() if "past" in value.name}
        narrow = one.variant in ("fp16", "q4f16")
        assert kinds == {"tensor(float16)" if narrow else "tensor(float)"}
