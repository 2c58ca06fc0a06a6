"""Fill the graph of an exported language model with the weights of a GGUF file.

Which tensor a node reads is told by the module that the node came from: its name (exporters of
torch, onnxruntime-genai), what torch.onnx noted of it, or the name of the constant. Each reader is
asked, not each constant: exporters store equal constants once, and a model that was never trained
has many.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.errors import MissingPackageError, ModelError
from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.editing import add_initializer, graph_of, remove_unused_initializers
from bitwright.graph.loading import ModelSource, load_model
from bitwright.graph.names import NameScope
from bitwright.graph.source import SOURCE_KEY
from bitwright.graph.tensors import lazy_tensor
from bitwright.support.array_types import Array

ARCHITECTURES = ("gemma2", "gemma3", "llama", "qwen2", "qwen3")
"""What is supported: decoders whose modules have the names of Hugging Face's Llama."""

_PERMUTED = ("llama",)
"""Where the two halves of each rotated pair of a head lie side by side, in rows of q and k."""


class GGUFFile:
    """A GGUF file: names and shapes of its tensors, and the floats of one when they are read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ModelError(f"there is no file {str(path)!r} to take weights from.")
        try:
            import gguf
        except ImportError as error:
            raise MissingPackageError(
                "reading a GGUF file needs the package gguf; pip install 'bitwright[gguf]'."
            ) from error
        try:
            reader = gguf.GGUFReader(self.path)
            self._settings = {name: field.contents() for name, field in reader.fields.items()}
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        except Exception as error:  # of a damaged file the package raises whatever it meets
            raise ModelError(f"{str(path)!r} is no GGUF file, or a damaged one.") from error
        self.architecture = str(self._settings.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise ModelError(
                f"{str(path)!r} holds a model of architecture {self.architecture!r}; those that "
                f"weights can be taken from are {', '.join(ARCHITECTURES)}."
            )

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor: [outputs, inputs] of a matrix."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def setting(self, name: str) -> Any:
        """Return a setting of the architecture, such as `attention.head_count`, or None."""
        return self._settings.get(f"{self.architecture}.{name}")

    @property
    def gains_with_offset(self) -> bool:
        """Whether the gains of norms are one more than Hugging Face's, which adds it later."""
        return self.architecture.startswith("gemma")

    def read(self, name: str) -> Array:
        """Return a tensor in float32, in the order of rows that Hugging Face has."""
        import gguf

        tensor = self._tensors[name]
        try:
            array: Array = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"tensor {name!r} of {str(self.path)!r} has type {tensor.tensor_type.name}, which "
                "the package gguf does not read; take a file in F32, F16, BF16, Q4_0 to Q8_0 or "
                "Q2_K to Q6_K."
            ) from error
        array = array.astype(np.float32, copy=False).reshape(self.shape(name))
        part = name.split(".")[2] if name.startswith("blk.") else ""
        if self.architecture in _PERMUTED and part in ("attn_q", "attn_k"):
            return self._restore_rows(array, part, int(name.split(".")[1]))
        return array

    def _restore_rows(self, array: Array, part: str, layer: int) -> Array:
        counts = self.setting("attention.head_count")
        if part == "attn_k":
            counts = self.setting("attention.head_count_kv") or counts
        heads = int(counts[layer] if isinstance(counts, list) else counts)
        pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, -1)
        return pairs.swapaxes(1, 2).reshape(array.shape)


# A module of Hugging Face or of onnxruntime-genai's builder -> the tensors whose rows it holds, one
# behind the other. The first of the alternatives that a file has is taken: some architectures have
# a norm more, and a head without a tensor of its own is the embedding.
_OF_MODEL: dict[str, tuple[tuple[str, ...], ...]] = {
    "embed_tokens": (("token_embd",),),
    "lm_head": (("output",), ("token_embd",)),
    "norm": (("output_norm",),),
    "final_norm_layernorm": (("output_norm",),),
}
_OF_LAYER: dict[str, tuple[tuple[str, ...], ...]] = {
    "q_proj": (("attn_q",),),
    "k_proj": (("attn_k",),),
    "v_proj": (("attn_v",),),
    "qkv_proj": (("attn_q", "attn_k", "attn_v"),),
    "o_proj": (("attn_output",),),
    "q_norm": (("attn_q_norm",),),
    "k_norm": (("attn_k_norm",),),
    "gate_proj": (("ffn_gate",),),
    "up_proj": (("ffn_up",),),
    "gate_up_proj": (("ffn_gate", "ffn_up"),),
    "down_proj": (("ffn_down",),),
    "input_layernorm": (("attn_norm",),),
    "post_attention_layernorm": (("post_attention_norm",), ("ffn_norm",)),
    "pre_feedforward_layernorm": (("ffn_norm",),),
    "post_feedforward_layernorm": (("post_ffw_norm",),),
}
_NOT_IN_GRAPHS = ("rope_freqs.weight",)
"""What exporters compute from the configuration."""
_SCOPES = "pkg.torch.onnx.name_scopes"
_SHOWN = 3


def fill_weights(source: ModelSource, weights: str | os.PathLike[str]) -> ir.Model:
    """Return a float model with the weights of a GGUF file, which are read when they are needed.

    Every matrix of the graph must be in the file, and every tensor of the file in the graph. Heads
    and rotary angles are compared where the graph shows them.
    """
    file = GGUFFile(weights)
    model = load_model(source)
    uses = list(_find_uses(model, file))
    lost = [f"{use.value.name!r} of {use.reader.name!r}" for use in uses if not use.tensors]
    if lost:
        raise ModelError(
            f"{_some(lost)} in the graph cannot be matched with tensors of {str(weights)!r}: "
            "neither their names nor those of the nodes tell of which module they are (such as "
            "model.layers.0.self_attn.q_proj), or the file does not have it."
        )
    taken = {name for use in uses for name in use.tensors}
    unused = [repr(name) for name in file if name not in taken and name not in _NOT_IN_GRAPHS]
    if unused:
        raise ModelError(
            f"the graph has no place for {_some(unused)} of {str(weights)!r}; it must be exported "
            f"from the same model, of architecture {file.architecture!r}."
        )
    _check_attention(model, file)
    _put(model, uses, file)
    model.meta.pop(SOURCE_KEY, None)  # what lies there has other weights
    return model


class _Use(NamedTuple):
    """A node that reads a constant, and what it shall read instead."""

    reader: ir.Node
    link: ir.Node
    """The node that reads the constant itself: the reader, or a Transpose or Cast before it."""
    place: int
    value: ir.Value
    tensors: tuple[str, ...]
    """Of the file; none where it has no such."""
    transposed: bool
    """Whether the constant has [inputs, outputs], the other way round than the file."""
    offset: float
    """What the graph adds to it."""

    @property
    def wanted(self) -> _Wanted:
        return self.tensors, self.transposed, self.offset


def _find_uses(model: ir.Model, file: GGUFFile) -> Iterator[_Use]:
    for reader in model.graph.all_nodes():
        if _passes_on(reader):
            continue
        for place in range(len(reader.inputs)):
            link, at, value, flipped = _trace(reader, place)
            tensor = None if value is None else value.const_value
            if value is None or tensor is None or not tensor.dtype.is_floating_point():
                continue
            rank, size = len(tensor.shape), tensor.size
            columns = _reads_columns(reader, place) if rank == 2 else False
            if size < 2 or rank not in (1, 2) or columns is None:
                continue
            paths = (*_paths(reader), *_paths(link), value.name or "")
            kind = "weight" if rank == 2 else None
            tensors = next(filter(None, (_tensors_of(path, kind, file) for path in paths)), ())
            # Tables of rotary angles are looked up as the embedding is.
            if tensors or (rank == 2 and reader.op_type != "Gather"):
                offset = float(rank == 1 and file.gains_with_offset and _adds_one(reader, place))
                yield _Use(reader, link, at, value, tensors, columns != flipped, offset)


def _passes_on(node: ir.Node) -> bool:
    return not node.domain and node.op_type in ("Transpose", "Cast", "Identity")


def _trace(node: ir.Node, place: int) -> tuple[ir.Node, int, ir.Value | None, bool]:
    """Return who reads the constant behind an input, where, which it is, and if it is flipped."""
    value, flipped = node.inputs[place], False
    while value is not None and (maker := value.producer()) is not None and _passes_on(maker):
        flipped ^= maker.op_type == "Transpose"
        node, place, value = maker, 0, maker.inputs[0]
    constant = value is not None and value.is_initializer() and not value.is_graph_input()
    return node, place, value if constant else None, flipped


def _reads_columns(node: ir.Node, place: int) -> bool | None:
    """Whether a node reads a matrix as [inputs, outputs]; None where it is no weight."""
    if node.op_type == "Gather" and place == 0 and not node.attributes.get_int("axis", 0):
        return False
    if node.op_type == "Gemm" and place == 1:
        return not node.attributes.get_int("transB", 0)
    return True if node.op_type == "MatMul" and place == 1 else None


def _paths(node: ir.Node) -> Iterator[str]:
    """Yield the module that a node came from, as its exporter tells it."""
    scopes = re.findall(r"'([^']*)'", node.metadata_props.get(_SCOPES, ""))
    yield from reversed(scopes)
    yield node.name or ""


def _tensors_of(path: str, kind: str | None, file: GGUFFile) -> tuple[str, ...]:
    """Return the tensors of the module that a path names; none where the file has no such.

    `kind` is None for a vector: the gain of a norm, or a bias.
    """
    words = re.split(r"[./]", path)
    place = words.index("layers") + 1 if "layers" in words else len(words)
    layer = words[place] if place < len(words) and words[place].isdecimal() else None
    for word in reversed(words):
        prefix, table = "", _OF_MODEL
        if word not in table and layer is not None:
            prefix, table = f"blk.{layer}.", _OF_LAYER
        if word == "norm" and layer is not None:
            continue  # of something in a layer, not behind the last
        suffix = kind or ("weight" if "norm" in word else "bias")
        for names in table.get(word, ()):
            tensors = tuple(f"{prefix}{name}.{suffix}" for name in names)
            if all(tensor in file for tensor in tensors):
                return tensors
    return ()


def _adds_one(node: ir.Node, place: int) -> bool:
    """Whether a node adds one to a gain, as Gemma's norms do."""
    if node.op_type != "Add":
        return False
    other = constant_of(input_at(node, 1 - place))
    return other is not None and other.size == 1 and float(other.reshape(())) == 1.0


def _check_attention(model: ir.Model, file: GGUFFile) -> None:
    """Refuse a graph whose heads or rotary angles, which no weight shows, are of another model."""
    heads = file.setting("attention.head_count")
    for node in model.graph.all_nodes():
        number = node.attributes.get_int("num_heads", 0)
        if "Attention" in node.op_type and number and isinstance(heads, int) and number != heads:
            raise ModelError(
                f"{node.name!r} has {number} heads, and the model of {str(file.path)!r} {heads}; "
                "export the graph from the configuration of that model."
            )
    base, scaling = file.setting("rope.freq_base"), file.setting("rope.scaling.type")
    scaled = scaling not in (None, "none") or any(name in file for name in _NOT_IN_GRAPHS)
    found = [
        np.asarray(value.const_value.numpy()[1], np.float64)
        for name, value in model.graph.initializers.items()
        if name.startswith("cos_cache") and value.const_value is not None
    ]
    if base is None or scaled or not found:
        return
    angles = [float(base) ** (-np.arange(row.size) / row.size) for row in found]
    if all(np.abs(np.cos(a) - row).max() > 0.01 for a, row in zip(angles, found, strict=True)):
        raise ModelError(
            f"the rotary angles of the graph are not those of {str(file.path)!r}, whose base is "
            f"{float(base):g}; export the graph from the configuration of that model."
        )


_Wanted = tuple[tuple[str, ...], bool, float]


def _put(model: ir.Model, uses: Sequence[_Use], file: GGUFFile) -> None:
    """Give each reader its own tensor; the first of a constant keeps its name."""
    links: dict[tuple[ir.Node, int], _Use] = {}
    for use in uses:
        if links.setdefault((use.link, use.place), use).wanted != use.wanted:
            raise ModelError(
                f"{use.value.name!r} is one constant behind {use.link.name!r} for several modules "
                "of the graph; export it with weights that differ."
            )
    wanted: dict[ir.Value, dict[_Wanted, None]] = {}
    for use in links.values():
        wanted.setdefault(use.value, {})[use.wanted] = None
    names, made = NameScope(model), dict[_Wanted, ir.Value]()
    kept: dict[ir.Value, _Wanted | None] = {
        # What something else reads as well must stay what it is.
        value: next(iter(found)) if all(tuple(each) in links for each in value.uses()) else None
        for value, found in wanted.items()
    }
    for use in links.values():
        tensor = _lazy_tensor(use, file)
        if kept[use.value] == use.wanted:
            use.value.const_value = tensor
            continue
        if use.wanted not in made:
            made[use.wanted] = add_initializer(graph_of(use.value), names, use.tensors[0], tensor)
        use.link.replace_input_with(use.place, made[use.wanted])
    remove_unused_initializers(model)


def _lazy_tensor(use: _Use, file: GGUFFile) -> ir.LazyTensor:
    old = use.value.const_value
    assert old is not None
    shapes = [file.shape(name) for name in use.tensors]
    found = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    found = found[::-1] if use.transposed else found
    shape = tuple(old.shape.numpy())
    if found != shape or len({s[1:] for s in shapes}) > 1:
        raise ModelError(
            f"{use.value.name!r} of {use.reader.name!r} has shape {list(shape)}, and "
            f"{' and '.join(use.tensors)} of {str(file.path)!r} {list(found)}: it is of another "
            "model."
        )
    dtype = old.dtype

    def read() -> ir.TensorProtocol:
        array: Array = np.concatenate([file.read(name) for name in use.tensors])
        array = (array - np.float32(use.offset)) if use.offset else array
        array = array.T if use.transposed else array
        return ir.Tensor(np.ascontiguousarray(array, dtype.numpy()), dtype=dtype)

    return lazy_tensor(read, dtype, shape, use.value.name)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
