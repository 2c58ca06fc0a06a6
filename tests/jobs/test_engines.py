"""All verbs give the same wherever their work runs: here, elsewhere in shards, or on a cluster."""

import onnx_ir as ir
import pytest
from support.elsewhere import Elsewhere
from support.models import make_cnn, make_mlp, make_samples, make_transformer

import bitwright
from bitwright import GPTQ, AdaRound, WeightOnly, load_recipe
from bitwright.errors import ArgumentError, RecipeError
from bitwright.jobs.report import write_report


def content(model):
    """Return a model as bytes."""
    return ir.to_proto(model).SerializeToString(deterministic=True)


@pytest.fixture(scope="module")
def cnn():
    model = make_cnn()
    samples = make_samples(model, 12)
    return model, samples, bitwright.quantize(model, data=samples, recipe="int8")


def quantize_both(engine, model, samples, **options):
    here = bitwright.quantize(model, data=samples, **options)
    there = bitwright.quantize(model, data=samples, engine=engine, **options)
    assert content(there.model) == content(here.model)
    assert there.plan == here.plan and there.outputs == here.outputs
    assert engine.opened
    return there


def test_quantizing(cnn):
    model, samples, _ = cnn
    quantize_both(Elsewhere(), model, samples, recipe="npu-cnn")


@pytest.mark.parametrize("shard", [1, 5])
def test_comparing(cnn, shard):
    model, samples, made = cnn
    here = bitwright.compare(model, made.model, data=samples)
    engine = Elsewhere(shard)
    seen = []
    there = bitwright.compare(
        model,
        made.model,
        data=samples,
        engine=engine,
        progress=lambda done, total: seen.append(done),
    )
    assert there.to_dict() == here.to_dict() and engine.opened == 1
    assert seen[-1] == len(samples)


def test_comparing_where_groups_do_not_fit_and_with_an_exact_model(cnn):
    model, samples, _ = cnn
    made = bitwright.quantize(model, data=samples, recipe="npu-cnn")
    options = {"data": samples[:4], "plan": made.plan, "memory_budget": 1}
    here = bitwright.compare(model, made.model, **options)
    there = bitwright.compare(model, made.model, engine=Elsewhere(), **options)
    assert there.to_dict() == here.to_dict()


@pytest.mark.slow
def test_reporting(cnn):
    model, samples, made = cnn
    options = {"data": samples[:4], "plan": made.plan, "latency": False, "sensitivity": True}
    here = write_report(model, made.model, **options)
    engine = Elsewhere()
    there = write_report(model, made.model, engine=engine, **options)
    assert there.to_dict() == here.to_dict() and engine.opened > 3


@pytest.mark.parametrize("sequential", [True, False])
def test_rounding_by_what_layers_read(sequential):
    model = make_transformer()
    weights = WeightOnly(rounding=GPTQ(), block_size=16, sequential=sequential)
    recipe = load_recipe("int4-gptq").replace(weights=weights)
    quantize_both(Elsewhere(), model, make_samples(model, 6), recipe=recipe)


def test_applying_a_plan_that_rounds_by_data():
    model = make_mlp(width=32)
    samples = make_samples(model, 4)
    plan = bitwright.make_plan(model, recipe="int4-gptq", data=samples, engine=Elsewhere())
    here = bitwright.apply_plan(plan, model, data=samples)
    there = bitwright.apply_plan(plan, model, data=samples, engine=Elsewhere())
    assert content(there.model) == content(here.model)


@pytest.mark.slow
def test_learning_segments_at_the_same_time(tmp_path):
    pytest.importorskip("torch", reason="fine-tuning needs torch")
    model = make_cnn(opset=21, ir_version=10)
    learning = AdaRound(iterations=8, scope="layer", sequential=False, workers=1)
    recipe = load_recipe("int8").replace(fine_tune=learning)
    samples = make_samples(model, 9)
    quantize_both(Elsewhere(), model, samples, recipe=recipe)
    # What was learned elsewhere is kept here.
    engine = Elsewhere()
    options = {"recipe": recipe, "engine": engine, "work": tmp_path / "work"}
    first = bitwright.quantize(model, data=samples, **options)
    opened = engine.opened
    again = bitwright.quantize(model, data=samples, **options)
    assert content(again.model) == content(first.model) and opened
    assert len(list((tmp_path / "work").glob("*.safetensors"))) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["standard", "medium"])
def test_trials_of_an_effort(effort):
    demo = bitwright.load_demo()
    quantize_both(
        Elsewhere(64), demo.model_path, demo.calibration[:64], recipe="int8", effort=effort
    )


@pytest.mark.slow
@pytest.mark.parametrize("evaluate", ["top1", "agreement"])
def test_tuning(evaluate):
    demo = bitwright.load_demo()
    options = {
        "data": demo.calibration[:16],
        "eval_data": {"image": demo.images[:60], "label": demo.labels[:60]},
        "effort": "low",
        "recipe": "int8",
        "purpose": "size",
        "max_drop": 0.001,
        "evaluate": evaluate,
    }
    here = bitwright.tune(demo.model_path, **options)
    engine = Elsewhere(16)
    there = bitwright.tune(demo.model_path, engine=engine, **options)
    assert content(there.model) == content(here.model) and engine.opened
    kept, told = here.to_dict(), there.to_dict()
    assert {**told, "seconds": 0} == {**kept, "seconds": 0}


@pytest.mark.parametrize("recipe", ["int8-dynamic", "int4-rtn"])
def test_an_engine_without_anything_to_do_is_refused(recipe, cnn):
    with pytest.raises(RecipeError, match="observes no activations, so that an engine has nothing"):
        bitwright.make_plan(make_mlp(), recipe=recipe, engine="ray")
    with pytest.raises(ArgumentError, match="without data an engine has nothing to do"):
        bitwright.apply_plan(cnn[2].plan, cnn[0], engine="ray")
