"""Folders laid out as optimum writes them, exported by TorchScript from tiny random modules.

An encoder and decoders with and without a cache (as of T5), the same behind sound (as of Whisper),
and a decoder alone whose head is its embedding (as of Llama).
"""

from __future__ import annotations

import json

import torch
from torch import nn

WIDTH, HEADS, VOCABULARY, LAYERS = 64, 4, 96, 2
SIZE = WIDTH // HEADS


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def heads(self, x):
        return x.view(x.shape[0], -1, HEADS, SIZE).transpose(1, 2)

    def cached(self, x, past):
        key, value = self.heads(self.k(x)), self.heads(self.v(x))
        if past is None:
            return key, value
        return torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)

    def forward(self, x, key, value, mask=None):
        scores = self.heads(self.q(x)) @ key.transpose(2, 3) / SIZE**0.5
        scores = scores if mask is None else scores + mask
        mixed = scores.softmax(-1) @ value
        return self.o(mixed.transpose(1, 2).reshape(x.shape[0], -1, WIDTH))


class Layer(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.own, self.cross = Attention(), Attention() if cross else None
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x, past, mask, encoded=None, crossed=None):
        y = self.norms[0](x)
        kept = self.own.cached(y, past)
        x = x + self.own(y, *kept, mask)
        if self.cross is not None:
            crossed = self.cross.cached(encoded, None) if crossed is None else crossed
            x = x + self.cross(self.norms[1](x), *crossed)
        return x + self.down(nn.functional.gelu(self.up(self.norms[2](x)))), kept, crossed


class Encoder(nn.Module):
    """Token ids in, or sound of 8 bands."""

    def __init__(self, sound=False):
        super().__init__()
        self.table = nn.Conv1d(8, WIDTH, 3, padding=1) if sound else nn.Embedding(VOCABULARY, WIDTH)
        self.sound, self.layers = sound, nn.ModuleList(Layer(False) for _ in range(LAYERS))

    def forward(self, x):
        x = self.table(x).transpose(1, 2) if self.sound else self.table(x)
        for layer in self.layers:
            x, *_ = layer(x, None, None)
        return x


class Decoder(nn.Module):
    """The head is the embedding; with `cross` it reads an encoder's states, or what it cached."""

    def __init__(self, cross=False):
        super().__init__()
        self.table, self.cross = nn.Embedding(VOCABULARY, WIDTH), cross
        self.places = nn.Embedding(128, WIDTH)
        self.layers = nn.ModuleList(Layer(cross) for _ in range(LAYERS))

    def forward(self, ids, encoded=None, *past):
        step = 4 if self.cross else 2
        groups = [past[n : n + step] for n in range(0, len(past), step)] or [()] * LAYERS
        done = groups[0][0].shape[2] if past else 0
        count = ids.shape[1]
        here = torch.arange(count) + done
        x = self.table(ids) + self.places(here)
        ahead = torch.arange(done + count)[None] > here[:, None]
        mask = torch.where(ahead, -1e9, 0.0)
        made = []
        for layer, group in zip(self.layers, groups, strict=True):
            crossed = group[2:] or None
            x, kept, crossed = layer(x, group[:2] or None, mask, encoded, crossed)
            made += [*kept, *(crossed if self.cross and not past else ())]
        return (x @ self.table.weight.T, *made)


class Later(nn.Module):
    """The decoder behind a cache: it reads no encoder any more."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, ids, *past):
        return self.decoder(ids, None, *past)


def _export(module, arguments, path, inputs, outputs, axes, *, dynamo=False):
    if dynamo:
        open_axes = [dict.fromkeys(axes.get(name, ()), torch.export.Dim.DYNAMIC) for name in inputs]
        torch.onnx.export(
            module.eval(), arguments, path, input_names=inputs, output_names=outputs, dynamo=True,
            dynamic_shapes=(open_axes[0], tuple(open_axes[1:])), external_data=False, verbose=False,
        )  # fmt: skip
        return
    torch.onnx.export(
        module.eval(), arguments, path, input_names=inputs, output_names=outputs,
        dynamic_axes=axes, opset_version=18, dynamo=False, verbose=False,
    )  # fmt: skip


def _caches(prefix, kinds):
    return [
        f"{prefix}.{n}.{kind}{part}" for n in range(LAYERS) for kind in kinds
        for part in ("key", "value")
    ]  # fmt: skip


def make_seq2seq(folder, *, sound=False):
    """Write an encoder, a decoder, and the decoder that goes on with a cache."""
    torch.manual_seed(0)
    folder.mkdir()
    encoder, decoder = Encoder(sound), Decoder(cross=True)
    given = torch.randn(2, 8, 12) if sound else torch.arange(24).view(2, 12)
    name, axis = ("input_features", 2) if sound else ("input_ids", 1)
    _export(
        encoder, (given,), folder / "encoder_model.onnx", [name], ["last_hidden_state"],
        {name: {0: "batch", axis: "source"}, "last_hidden_state": {0: "batch", 1: "source"}}
    )  # fmt: skip
    kinds, ids = ("decoder.", "encoder."), torch.arange(10).view(2, 5)
    present, past = _caches("present", kinds), _caches("past_key_values", kinds)
    axes = {n: {0: "batch", 2: "source" if "encoder" in n else "past"} for n in past}
    axes |= {n: {0: "batch", 2: "source" if "encoder" in n else "all"} for n in present}
    axes |= {"input_ids": {0: "batch", 1: "target"}, "logits": {0: "batch", 1: "target"}}
    axes["encoder_hidden_states"] = {0: "batch", 1: "source"}
    encoded = encoder(given)
    inputs = ["input_ids", "encoder_hidden_states"]
    _export(
        decoder, (ids, encoded), folder / "decoder_model.onnx", inputs, ["logits", *present],
        {k: v for k, v in axes.items() if "past" not in k}
    )  # fmt: skip
    made = decoder(ids, encoded)[1:]
    own = [name for name in present if "decoder" in name]
    used = {"input_ids", "logits", *past, *own}
    later = {k: v for k, v in axes.items() if k in used}
    later["input_ids"] = {0: "batch"}  # one token at a time, as optimum writes it
    later["logits"] = {0: "batch"}
    _export(
        Later(decoder), (ids[:, -1:], *made), folder / "decoder_with_past_model.onnx",
        ["input_ids", *past], ["logits", *own], later
    )  # fmt: skip
    _write_config(folder)
    return folder


def make_decoder_only(folder, *, dynamo=False):
    """Write a decoder with a cache, by TorchScript or by dynamo."""
    torch.manual_seed(0)
    folder.mkdir()
    decoder, ids = Decoder(), torch.arange(12).view(2, 6)
    past, present = _caches("past_key_values", ("",)), _caches("present", ("",))
    kept = [torch.randn(2, HEADS, 3, SIZE) for _ in past]
    axes = {n: {0: "batch", 2: "past"} for n in past} | {n: {0: "batch", 2: "all"} for n in present}
    axes |= {"input_ids": {0: "batch", 1: "target"}, "logits": {0: "batch", 1: "target"}}
    _export(
        Later(decoder), (ids, *kept), folder / "model.onnx", ["input_ids", *past],
        ["logits", *present], axes, dynamo=dynamo
    )  # fmt: skip
    _write_config(folder)
    return folder


def _write_config(folder):
    sizes = {"num_attention_heads": HEADS, "hidden_size": WIDTH, "vocab_size": VOCABULARY}
    sizes |= {"num_key_value_heads": HEADS, "num_hidden_layers": LAYERS, "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "tokenizer.json").write_text("{}")
