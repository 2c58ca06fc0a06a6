import pytest
from support.models import Reader, make_cnn, make_samples

from bitwright.compat.quark import BiasCorrectionConfig, Int8Spec, QConfig, QLayerConfig
from bitwright.compat.quark.layers import flatten
from bitwright.compat.vai_q_onnx.options import read_options
from bitwright.errors import RecipeError


@pytest.mark.parametrize(("value", "mode"), [(True, "sequential"), (False, None), (None, None)])
def test_the_option_asks_for_the_correction_that_compares_outputs(value, mode):
    assert read_options({"BiasCorrection": value}).recipe.get("bias_correction") == mode


def test_anything_else_is_refused():
    with pytest.raises(RecipeError, match="'BiasCorrection' is True or False, not 'fast'"):
        read_options({"BiasCorrection": "fast"})


def test_the_step_of_a_configuration_is_the_option():
    layer = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec())
    config = QConfig(global_config=layer, algo_config=[BiasCorrectionConfig()])
    assert flatten(config, make_cnn()).extra_options["BiasCorrection"] is True


def test_quantize_static_corrects_biases(tmp_path):
    import onnx

    from bitwright.compat import vai_q_onnx

    model = make_cnn()
    onnx.save(model, tmp_path / "model.onnx")
    written = []
    for option in (False, True):
        out = tmp_path / f"{option}.onnx"
        vai_q_onnx.quantize_static(
            str(tmp_path / "model.onnx"),
            str(out),
            Reader(make_samples(model, 8)),
            extra_options={"BiasCorrection": option},
        )
        written.append(onnx.load(out))
    recipes = [
        next(p.value for p in m.metadata_props if p.key == "bitwright.recipe") for m in written
    ]
    assert '"bias_correction":"sequential"' in recipes[1].replace(" ", "")
    assert '"bias_correction":"off"' in recipes[0].replace(" ", "")
