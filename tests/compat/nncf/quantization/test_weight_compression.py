"""`compress_weights`: its options become a weight-only recipe."""

from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from support.language_models import make_block, make_decoder
from support.language_models import make_samples as make_tokens
from support.models import make_samples, make_transformer, ops

import bitwright
from bitwright.compat import nncf
from bitwright.compat.nncf.errors import InvalidGroupSizeError
from bitwright.recipe import AWQ, GPTQ, ByPlace, Nearest

MODEL = make_transformer(width=32)
DATASET = nncf.Dataset(make_samples(MODEL, 4))
INT4 = nncf.CompressWeightsMode.INT4_SYM


@pytest.fixture
def asked(monkeypatch):
    """What `quantize` is asked for."""
    found = {}

    def quantize(model, **options):
        found.update(options)
        return SimpleNamespace(model=ir.from_proto(model))

    monkeypatch.setattr("bitwright.api.quantize", quantize)
    return lambda **options: (nncf.compress_weights(MODEL, **options), found["recipe"].weights)[1]


def stored_types(model):
    """Return the element type of each stored weight, by its name."""
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    return {node.input[0].removesuffix("_quantized"): stored[node.input[0]] for node in pairs}


def test_eight_bits_are_those_of_channels():
    model = nncf.compress_weights(MODEL)
    assert isinstance(model, onnx.ModelProto)
    assert [*stored_types(model).values()] == [onnx.TensorProto.UINT8] * 6
    axes = {a.i for n in model.graph.node for a in n.attribute if n.op_type == "DequantizeLinear"}
    assert axes == {-1}  # from the end: the runtime multiplies float activations then
    weight = numpy_helper.to_array(next(t for t in MODEL.graph.initializer if t.name == "w_q"))
    scale = next(t for t in model.graph.initializer if t.name == "w_q_scales")
    width = np.maximum(weight.max(0), 0) - np.minimum(weight.min(0), 0)
    np.testing.assert_allclose(numpy_helper.to_array(scale), width / 255, rtol=1e-6)
    scope = nncf.IgnoredScope(names=["q_matmul"])
    assert len(stored_types(nncf.compress_weights(MODEL, ignored_scope=scope))) == 5
    with pytest.raises(nncf.ValidationError, match="ignored_scope"):
        nncf.compress_weights(MODEL, ignored_scope=nncf.IgnoredScope(names=["no_such"]))


def test_where_nothing_is_left_to_compress_the_model_stays_as_it_is():
    scope = nncf.IgnoredScope(types=["MatMul", "Gemm", "Gather"], validate=False)
    with pytest.warns(UserWarning, match="the model stays as it is"):
        same = nncf.compress_weights(MODEL, ignored_scope=scope)
    assert ops(same) == ops(MODEL)


def test_without_a_backup_mode_the_head_stays_float():
    model = make_decoder()
    plain, floats = (
        nncf.compress_weights(model, mode=INT4, group_size=16, backup_mode=mode)
        for mode in (nncf.BackupMode.INT8_SYM, nncf.BackupMode.NONE)
    )
    types = [set(stored_types(made).values()) for made in (plain, floats)]
    assert types == [{onnx.TensorProto.INT4, onnx.TensorProto.UINT8}, {onnx.TensorProto.INT4}]
    assert len(stored_types(floats)) < len(stored_types(plain))


def test_data_rounds_weights():
    source = onnx.version_converter.convert_version(MODEL, 17)
    options = {"mode": INT4, "group_size": 16, "dataset": DATASET}
    plain, learned = (nncf.compress_weights(source, gptq=gptq, **options) for gptq in (None, True))
    # Below opset 21 few bits are a product of the runtime.
    assert ops(plain)["MatMulNBits"] == ops(learned)["MatMulNBits"] == 6
    assert plain.SerializeToString() != learned.SerializeToString()


def test_a_share_of_a_language_model_has_four_bits():
    model = make_decoder()
    with pytest.warns(UserWarning, match="ratio 0.6 goes by place"):
        small = nncf.compress_weights(model, mode=INT4, group_size=16, ratio=0.6)
    assert set(stored_types(small).values()) == {onnx.TensorProto.INT4, onnx.TensorProto.UINT8}


def test_modes_are_bits_and_symmetry(asked):
    plain = asked()
    assert (plain.bits, plain.symmetric, plain.block_size) == (8, False, -1)
    assert plain.embeddings and plain.rounding == Nearest(clip=False) and plain.output == "qdq"
    few = asked(mode=INT4)
    assert (few.bits, few.symmetric, few.block_size) == (4, True, 128)
    assert {n: (o.bits, o.symmetric, o.block_size) for n, o in few.overrides.items()} == {
        "down_matmul": (8, False, -1)  # the last product
    }
    assert few.mixed is None
    whole = asked(mode="int4_asym", group_size=-1, all_layers=True, ratio=1.0)
    assert (whole.symmetric, whole.block_size, whole.overrides) == (False, -1, {})
    assert asked(mode="int3_sym").bits == 3


def test_methods_by_data(asked):
    advanced = nncf.AdvancedCompressionParameters(
        gptq_params=nncf.AdvancedGPTQParameters(damp_percent=0.05)
    )
    found = asked(
        mode=INT4,
        dataset=DATASET,
        ratio=0.75,
        awq=True,
        scale_estimation=True,
        gptq=True,
        backup_mode=nncf.BackupMode.INT8_SYM,
        advanced_parameters=advanced,
    )
    assert found.rounding == GPTQ(damping=0.05) and found.awq == AWQ() and found.refine == 1
    [last], sizes = found.overrides, {t.name: np.prod(t.dims) for t in MODEL.graph.initializer}
    wide = sizes[f"w_{last.removesuffix('_matmul')}"]
    share = wide / sum(size for name, size in sizes.items() if name.startswith("w_"))
    assert found.mixed.average_bits == pytest.approx(share * 8 + (1 - share) * 5)


def test_what_does_nothing_is_warned_of(asked):
    with pytest.warns(UserWarning, match="ratio 0.5 goes by place"):
        assert asked(mode=INT4, ratio=0.5).mixed == ByPlace()
    with pytest.warns(UserWarning, match="awq has no effect: AWQ scales by what a layer reads"):
        assert asked(mode=INT4, awq=True).awq is None
    metric = nncf.SensitivityMetric.MAX_ACTIVATION_VARIANCE
    with pytest.warns(UserWarning, match="sensitivity_metric has no effect"):
        asked(mode=INT4, dataset=DATASET, sensitivity_metric=metric)
    advanced = nncf.AdvancedCompressionParameters(
        group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST
    )
    with pytest.warns(UserWarning, match="group_size_fallback_mode of advanced_parameters has no"):
        asked(mode=INT4, advanced_parameters=advanced)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"mode": "nf4"}, nncf.ParameterNotSupportedError, "mode 'nf4' has no form here; take"),
        ({"ratio": 0.5}, nncf.ParameterNotSupportedError, "eight bits take no ratio: all weights"),
        ({"dataset": DATASET}, nncf.ParameterNotSupportedError, "take no dataset"),
        (
            {"mode": INT4, "gptq": True},
            nncf.ParameterNotSupportedError,
            "scale_estimation and gptq look at data; give a dataset",
        ),
        (
            {"mode": INT4, "backup_mode": "none", "ratio": 0.5},
            nncf.ParameterNotSupportedError,
            "backup_mode NONE has no form here beside a ratio",
        ),
        (
            {"mode": INT4, "lora_correction": True},
            nncf.ParameterNotSupportedError,
            "lora_correction is not for ONNX models",
        ),
        (
            {"compression_format": nncf.CompressionFormat.FQ},
            nncf.ParameterNotSupportedError,
            "compression_format is DQ, not 'fake_quantize'",
        ),
        (
            {"advanced_parameters": nncf.AdvancedCompressionParameters(statistics_path="x")},
            nncf.ParameterNotSupportedError,
            "statistics_path is not for ONNX models",
        ),
        ({"mode": INT4, "ratio": 1.5}, nncf.ValidationError, r"ratio lies in \[0, 1\]"),
        ({"mode": INT4, "group_size": 1}, InvalidGroupSizeError, "at least 2, or -1"),
        ({"subset_size": 0}, nncf.ValidationError, "subset_size is at least 1, not 0"),
    ],
)
def test_what_has_no_form_is_refused(options, error, sentence):
    with pytest.raises(error, match=sentence):
        nncf.compress_weights(MODEL, **options)


def test_a_ratio_is_a_share_of_the_weights_beside_the_head():
    demo = bitwright.load_demo()
    dataset = nncf.Dataset([{"image": image[None]} for image in demo.calibration[:4]])
    # It has no other weight than its head.
    model = onnx.version_converter.convert_version(onnx.load(demo.model_path), 21)
    assert [*bits_of(model, dataset, ratio=0.8, group_size=32).values()] == [8]
    found = bits_of(make_block(), nncf.Dataset(make_tokens(4)), ratio=0.5, group_size=16)
    others = [bits for name, bits in found.items() if "head" not in name and "embed" not in name]
    [head] = [bits for name, bits in found.items() if "head" in name]
    assert head == 8 and others.count(4) == len(others) / 2


def bits_of(model, dataset, **options):
    """Return the bits of each weight of a compressed model."""
    small = nncf.compress_weights(model, mode=INT4, dataset=dataset, **options)
    bits = {onnx.TensorProto.INT4: 4, onnx.TensorProto.UINT8: 8, onnx.TensorProto.INT8: 8}
    return {name: bits[kind] for name, kind in stored_types(small).items()}


@pytest.mark.parametrize("size", [8, 24])
def test_groups_without_a_kernel_are_in_pairs(size):
    model = nncf.compress_weights(MODEL, mode=INT4, group_size=size)
    assert ops(model)["MatMulNBits"] == 0
    blocks = [
        attribute.i
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        for attribute in node.attribute
        if attribute.name == "block_size"
    ]
    assert blocks and set(blocks) == {size}
    assert bitwright.compare(MODEL, model, data=make_samples(MODEL, 2)).outputs[0].sqnr > 10


def test_products_of_several_matrices_are_in_pairs():
    onnx_model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        net (float[4, 2, 32] x) => (float[4, 2, 8] y) { y = MatMul(x, w) }
    """)
    weight = np.random.default_rng(0).standard_normal((4, 32, 8)).astype(np.float32)
    onnx_model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model = nncf.compress_weights(onnx_model, mode=nncf.CompressWeightsMode.INT8_SYM)
    assert [node.op_type for node in model.graph.node] == ["DequantizeLinear", "MatMul"]
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    codes = stored[model.graph.node[0].input[0]]
    assert tuple(codes.dims) == (4, 32, 8) and codes.data_type == onnx.TensorProto.INT8


def test_types_that_the_model_does_not_have_are_refused_unless_it_is_not_asked():
    for kind in (nncf.compress_weights, lambda m, **o: nncf.quantize(m, DATASET, **o)):
        with pytest.raises(nncf.ValidationError, match="no node is a GRU"):
            kind(MODEL, ignored_scope=nncf.IgnoredScope(types=["GRU"]))
        kind(MODEL, ignored_scope=nncf.IgnoredScope(types=["GRU"], validate=False))
