"""Tiny language models as graphs with the names that exporters give, and as GGUF files."""

from __future__ import annotations

import re

import numpy as np

from support.models import INT64, build, info, node

WIDTH, HEADS, GROUPS, HEAD, HIDDEN, VOCABULARY = 32, 4, 2, 8, 48, 40

SHAPES = {
    "attn_q": (HEADS * HEAD, WIDTH),
    "attn_k": (GROUPS * HEAD, WIDTH),
    "attn_v": (GROUPS * HEAD, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD),
    "ffn_gate": (HIDDEN, WIDTH),
    "ffn_up": (HIDDEN, WIDTH),
    "ffn_down": (WIDTH, HIDDEN),
    "attn_norm": (WIDTH,),
    "ffn_norm": (WIDTH,),
}
MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def make_tensors(*, layers=2, tied=True, seed=0):
    """Weights by the names of GGUF, in the order of rows that Hugging Face has."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd": (VOCABULARY, WIDTH), "output_norm": (WIDTH,)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in SHAPES.items()}
    shapes |= {} if tied else {"output": (VOCABULARY, WIDTH)}
    return {
        f"{name}.weight": (0.2 * rng.normal(size=shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def permute_rows(array, heads):
    """Bring the halves of each head side by side, as llama.cpp's converter does for Llama."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def write_gguf(path, tensors, *, architecture="llama", types=None, base=None):
    """Write the file that llama.cpp's converter would.

    `types` quantizes tensors by their name, `base` is that of rotary angles.
    """
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    if base is not None:
        writer.add_rope_freq_base(base)
    for name, array in tensors.items():
        if architecture == "llama" and "attn_q." in name:
            array = permute_rows(array, HEADS)
        if architecture == "llama" and "attn_k." in name:
            array = permute_rows(array, GROUPS)
        if architecture.startswith("gemma") and "norm" in name:
            array = array + 1
        kind = (types or {}).get(name)
        if kind is None:
            writer.add_tensor(name, np.ascontiguousarray(array))
        else:
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class _Graph:
    """Nodes and constants with the names that an exporter gives them."""

    def __init__(self, exporter, dtype, offset):
        self.exporter, self.dtype, self.offset = exporter, dtype, offset
        self.nodes, self.constants = [], {"one": np.array(1, dtype)}

    def constant(self, module, array):
        if self.exporter == "torchscript":  # only nodes have names that tell something
            name = f"onnx::MatMul_{len(self.constants)}"
        elif self.exporter == "builder" and array.ndim == 2 and "embed" not in module:
            name = f"{module.replace('self_attn', 'attn')}.MatMul.weight"
        else:
            name = f"{module}.weight"
        self.constants[name] = array.astype(self.dtype)
        return name

    def node(self, op, inputs, module="", **attributes):
        place = len(self.nodes)
        path = re.sub(r"[.](?!\d)", "/", f"/{module}") if self.exporter == "torchscript" else ""
        self.nodes.append(node(op, inputs, [f"t{place}"], f"{path}/{op}_{place}", **attributes))
        return f"t{place}"

    def linear(self, x, module, *weights):
        name = self.constant(module, np.concatenate(weights).T)
        return self.node("MatMul", [x, name], module)

    def norm(self, x, module, gain):
        name = self.constant(module, gain)
        if self.offset:
            name = self.node("Add", [name, "one"], module)
        return self.node("Mul", [x, name], module)


def make_graph(tensors, *, exporter="torch", dtype=np.float32, offset=False):
    """A graph that reads every weight, so that a wrong one shows; no real attention.

    `exporter` names things as "torch" (constants by module), "torchscript" (nodes by module) or
    "builder" (as onnxruntime-genai's, q, k and v in one matrix) does. With `offset` the norms add
    one to their gains, as Gemma's do. The head is the embedding where there is no other.
    """
    g = _Graph(exporter, dtype, offset)
    table = g.constant("model.embed_tokens", tensors["token_embd.weight"])
    x = g.node("Gather", [table, "ids"], "model.embed_tokens")
    for layer in range(sum("attn_q.weight" in name for name in tensors)):
        at = {
            module: f"model.layers.{layer}.{module}" for module in (*MODULES, "self_attn.qkv_proj")
        }
        own = {m: tensors[f"blk.{layer}.{name}.weight"] for m, name in MODULES.items()}
        h = g.norm(x, at["input_layernorm"], own["input_layernorm"])
        qkv = [f"self_attn.{part}_proj" for part in "qkv"]
        if exporter == "builder":
            joined = g.linear(h, at["self_attn.qkv_proj"], *(own[m] for m in qkv))
        else:
            joined = g.node("Concat", [g.linear(h, at[m], own[m]) for m in qkv], axis=-1)
        mixed = g.node("Mul", [joined, joined])
        narrow = g.node("Slice", [mixed, "start", "end", "axis"])
        rest = g.node("Slice", [mixed, "end", "all", "axis"])
        o = g.linear(g.node("Sub", [narrow, rest]), at["self_attn.o_proj"], own["self_attn.o_proj"])
        x = g.node("Add", [x, o])
        h = g.norm(x, at["post_attention_layernorm"], own["post_attention_layernorm"])
        gate, up = (g.linear(h, at[m], own[m]) for m in ("mlp.gate_proj", "mlp.up_proj"))
        both = g.node("Mul", [gate, up])
        x = g.node("Add", [x, g.linear(both, at["mlp.down_proj"], own["mlp.down_proj"])])
    x = g.norm(x, "model.norm", tensors["output_norm.weight"])
    if "output.weight" in tensors:
        g.linear(x, "lm_head", tensors["output.weight"])
    else:
        g.node("MatMul", [x, g.node("Transpose", [table], "lm_head", perm=[1, 0])], "lm_head")
    g.nodes[-1].output[0] = "logits"
    numbers = {"start": 0, "end": HEADS * HEAD, "all": 2 * HEADS * HEAD, "axis": 2}
    g.constants |= {name: np.array([number], np.int64) for name, number in numbers.items()}
    kind = {np.float32: 1, np.float16: 10}[dtype]
    inputs, outputs = info("ids", [1, "n"], INT64), info("logits", [1, "n", VOCABULARY], kind)
    return build(g.nodes, [inputs], [outputs], g.constants, opset=21, ir_version=10)


def make_ids():
    return np.arange(VOCABULARY, dtype=np.int64)[None, ::3]
