"""NNCF's quantization with accuracy control: the same call, the same kind of result."""

from __future__ import annotations

import subprocess
from inspect import Parameter, signature
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from support.models import ops
from support.tool_environment import tool_python

import bitwright
from bitwright.compat import nncf
from bitwright.compat.nncf.quantization.accuracy_control import _Validation
from bitwright.compat.nncf.quantization.advanced_parameters import (
    AdvancedAccuracyRestorerParameters,
    AdvancedQuantizationParameters,
    RestoreMode,
)
from bitwright.errors import DataError

DEMO = bitwright.load_demo()


def accuracy(model, items):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    right = [float(session.run(None, {"image": i[None]})[0].argmax() == y) for i, y in items]
    return sum(right) / len(right), right


def control(function=accuracy, *, count=60, **options):
    items = list(zip(DEMO.images, DEMO.labels, strict=True))[:count]
    return nncf.quantize_with_accuracy_control(
        onnx.load(DEMO.model_path),
        nncf.Dataset(DEMO.calibration[:24], lambda image: {"image": image[None]}),
        nncf.Dataset(items, lambda item: {"image": item[0][None]}),
        function,
        **{"max_drop": 0.05, **options},
    )


@pytest.mark.slow
def test_a_model_within_the_drop_comes_back_as_a_proto():
    seen = []

    def watched(model, items):
        found = accuracy(model, items)
        seen.append((ops(model)["QuantizeLinear"], len(found[1])))
        return found

    model = control(watched)
    assert isinstance(model, onnx.ModelProto) and ops(model)["QuantizeLinear"] > 5
    # The float model first, then quantized ones, on a part; the rest is looked at in the end.
    assert seen[0] == (0, 40) and (0, 20) in seen
    items = list(zip(DEMO.images, DEMO.labels, strict=True))
    assert accuracy(model, items)[0] > accuracy(onnx.load(DEMO.model_path), items)[0] - 0.05


@pytest.fixture
def asked(monkeypatch):
    """What `tune` is asked for, in place of the search."""
    found = {}

    def tune(model, **options):
        found.update(options)
        point = SimpleNamespace(measured=SimpleNamespace(drop=0.25))
        is_float = options["max_drop"] == 0
        return SimpleNamespace(
            met=False, is_float=is_float, point=point, model=ir.from_proto(model)
        )

    monkeypatch.setattr("bitwright.api.tune", tune)
    return found


@pytest.mark.filterwarnings("ignore:the quantized model")
def test_options_become_those_of_tune(asked):
    control(max_drop=0.02, drop_type="relative", subset_size=5)
    assert asked["max_drop"] == 0.02 and asked["relative"] and asked["evaluate_on"] == "model"
    assert len(asked["data"]) == 5 and len(asked["eval_data"]) == 60
    control()
    assert not asked["relative"] and len(asked["data"]) == 24


def test_a_drop_that_cannot_be_kept_to_is_warned_of(asked):
    with pytest.warns(UserWarning, match=r"falls by 0.25, misses max_drop: no mixture of types"):
        control()
    with pytest.warns(UserWarning, match=r"^every model with anything quantized misses max_drop"):
        control(max_drop=0)


@pytest.mark.filterwarnings("ignore:the quantized model")
def test_the_model_is_quantized_however_fast_float_is(asked):
    control()
    assert asked["keep_quantized"]


@pytest.mark.filterwarnings("ignore:the quantized model")
def test_ignored_scopes_are_selections(asked):
    part = nncf.Subgraph(inputs=["deep_a_conv"], outputs=["deep_add"])
    scope = nncf.IgnoredScope(["classify"], ["deep_a"], ["Add"], [part], validate=False)
    control(ignored_scope=scope)
    select = asked["recipe"].select
    assert select.exclude == ("classify", "re:(?:deep_a).*")
    assert select.exclude_op_types == ("Add",) and select.unknown_names == "warn"
    assert select.exclude_between == ((("deep_a_conv",), ("deep_add",)),)
    control()
    assert asked["recipe"].select.unknown_names == "refuse"


@pytest.mark.parametrize("field", ["names", "patterns", "types"])
def test_a_scope_that_fits_nothing_is_refused(field):
    with pytest.raises(nncf.ValidationError, match="no_such_thing"):
        control(ignored_scope=nncf.IgnoredScope(**{field: ["no_such_thing"]}))


def test_numbers_of_items_count_where_the_metric_is_their_mean():
    dataset = nncf.Dataset([1.0, 0.0, 1.0])
    samples = [{"__item__": 2}, {"__item__": 0}]
    assert _Validation(lambda m, items: (1.0, list(items)), dataset)(None, samples) == [1.0, 1.0]
    assert _Validation(lambda m, items: (0.7, list(items)), dataset)(None, samples) == 0.7
    assert _Validation(lambda m, items: (0.7, [np.ones(3)] * 2), dataset)(None, samples) == 0.7


@pytest.mark.filterwarnings("ignore:the quantized model")
def test_options_of_the_other_search_have_no_effect_and_say_so(asked):
    given = AdvancedAccuracyRestorerParameters(
        max_num_iterations=3,
        tune_hyperparams=True,
        ranking_subset_size=25,
        num_ranking_workers=2,
        restore_mode=RestoreMode.ONLY_ACTIVATIONS,
    )
    with pytest.warns(UserWarning, match="has no effect: error and cost of each unit") as caught:
        control(advanced_accuracy_restorer_parameters=given)
    named = [str(warning.message).split()[0] for warning in caught]
    assert named[:-1] == [
        "max_num_iterations",
        "ranking_subset_size",
        "num_ranking_workers",
        "restore_mode",
    ]


@pytest.mark.filterwarnings("ignore:the quantized model")
def test_the_model_that_the_search_starts_at_is_written(asked, tmp_path):
    folder = tmp_path / "models"
    given = AdvancedAccuracyRestorerParameters(intermediate_model_dir=str(folder))
    control(advanced_accuracy_restorer_parameters=given)
    assert [path.name for path in folder.iterdir()] == ["intermediate_model.onnx"]
    assert ops(onnx.load(folder / "intermediate_model.onnx"))["QuantizeLinear"] > 5


@pytest.mark.filterwarnings("ignore:the quantized model")
def test_advanced_parameters_are_part_of_the_recipe(asked):
    given = AdvancedQuantizationParameters(disable_bias_correction=True)
    control(advanced_quantization_parameters=given)
    assert asked["recipe"].bias_correction == "off"


@pytest.mark.filterwarnings("ignore:the quantized model")
def test_a_device_is_warned_of_and_items_are_dicts(asked):
    with pytest.warns(UserWarning, match="target_device 'NPU' has no effect"):
        control(target_device=nncf.TargetDevice.NPU)
    with pytest.raises(DataError, match="give the Dataset a transform_func"):
        nncf.quantize_with_accuracy_control(
            onnx.load(DEMO.model_path),
            nncf.Dataset(DEMO.calibration[:8], lambda image: {"image": image[None]}),
            nncf.Dataset(DEMO.images[:16]),
            accuracy,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "function", ["compress_weights", "quantize", "quantize_with_accuracy_control"]
)
def test_the_arguments_are_the_peers(function):
    python = tool_python(("nncf==3.4.0",))
    code = (
        f"import inspect, nncf; s = inspect.signature(nncf.{function});"
        "print([(n, int(p.kind), str(p.default)) for n, p in s.parameters.items()])"
    )
    found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    ours = signature(getattr(nncf, function)).parameters
    plain = [
        (name, int(p.kind), str(Parameter.empty if p.default is Parameter.empty else p.default))
        for name, p in ours.items()
    ]
    assert found.strip().splitlines()[-1] == str(plain)


@pytest.mark.filterwarnings("ignore:ranking_subset_size has no effect")
def test_a_script_of_its_examples_runs_with_other_import_lines():
    """As its examples for ONNX models with accuracy control are written."""
    from functools import partial

    from bitwright.compat import nncf
    from bitwright.compat.nncf.quantization.advanced_parameters import (
        AdvancedAccuracyRestorerParameters,
        AdvancedQuantizationParameters,
    )
    from bitwright.compat.nncf.quantization.range_estimator import (
        AggregatorType,
        RangeEstimatorParameters,
        StatisticsCollectorParameters,
        StatisticsType,
    )

    def transform_fn(data_item, input_name):
        return {input_name: data_item[0][None]}

    def validate(model, validation_loader):
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        right = [
            float(session.run(None, {"image": image[None]})[0].argmax() == label)
            for image, label in validation_loader
        ]
        return sum(right) / len(right), right

    model = onnx.load(DEMO.model_path)
    data = list(zip(DEMO.images, DEMO.labels, strict=True))[:80]
    transform = partial(transform_fn, input_name=model.graph.input[0].name)
    quantized_model = nncf.quantize_with_accuracy_control(
        model,
        nncf.Dataset(data, transform),
        nncf.Dataset(data, transform),
        validation_fn=validate,
        max_drop=0.03,
        drop_type=nncf.DropType.ABSOLUTE,
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=40,
        ignored_scope=nncf.IgnoredScope(
            types=["MaxPool"],
            subgraphs=[nncf.Subgraph(inputs=["deep_a_conv"], outputs=["deep_add"])],
        ),
        advanced_quantization_parameters=AdvancedQuantizationParameters(
            overflow_fix=nncf.OverflowFix.FIRST_LAYER,
            activations_range_estimator_params=RangeEstimatorParameters(
                min=StatisticsCollectorParameters(
                    StatisticsType.QUANTILE, AggregatorType.MEAN, quantile_outlier_prob=1e-4
                ),
                max=StatisticsCollectorParameters(
                    StatisticsType.QUANTILE, AggregatorType.MEAN, quantile_outlier_prob=1e-4
                ),
            ),
        ),
        advanced_accuracy_restorer_parameters=AdvancedAccuracyRestorerParameters(
            ranking_subset_size=25
        ),
    )
    onnx.checker.check_model(quantized_model)
    assert validate(quantized_model, data)[0] > validate(model, data)[0] - 0.04
