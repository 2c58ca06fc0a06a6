"""`--fine-tune` in `bitwright quantize` and `plan`, and what `apply` does with such a plan."""

import io
import sys

import onnx
import pytest

from bitwright import AdaQuant, AdaRound, QuantPlan, Recipe, RecipeError, SignRound, quantize
from bitwright.cli.recipe_choice import RecipeChoice
from bitwright.cli.settings import change_recipe

torch = pytest.importorskip("torch", reason="fine-tuning needs torch")

SHORT = ("--fine-tune", "adaround", "--iterations", "3")


def notes(answer):
    return [line for line in answer.out.splitlines() if line.startswith("Note: fine-tun")]


@pytest.mark.slow
def test_quantize_lets_weights_learn_and_says_what_came_of_each_block(run, model, data, out):
    answer = run("quantize", model, "-o", out, "--data", data, *SHORT)
    assert (answer.code, answer.err) == (0, "")
    assert "fine-tuned" in notes(answer)[0] and "segments" in notes(answer)[0]
    assert all(": error " in note and " -> " in note for note in notes(answer)[1:])
    onnx.checker.check_model(str(out), full_check=True)


def test_a_plan_keeps_the_wish_and_apply_fulfils_it(run, model, data, out, tmp_path):
    plan = tmp_path / "plan.json"
    assert run("plan", model, "-o", plan, "--data", data, *SHORT).code == 0
    assert QuantPlan.load(plan).recipe.fine_tune == AdaRound(iterations=3)
    refused = run("apply", plan, model, "-o", out)
    assert refused.code == 1 and "needs calibration data" in refused.err
    applied = run("apply", plan, model, "-o", out, "--data", data, "--device", "cpu")
    assert applied.code == 0 and notes(applied)
    assert "Against float (2 holdout samples)" in applied.out


def test_a_device_that_is_not_there_is_named(run, model, data, out):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    answer = run("quantize", model, "-o", out, "--data", data, *SHORT, "--device", "cuda")
    assert answer.code == 1
    assert "torch finds no CUDA device here" in answer.err
    assert not out.exists()


def test_a_plan_that_learns_nothing_takes_no_device(run, model, data, out, tmp_path):
    plan = tmp_path / "plan.json"
    assert run("plan", model, "-o", plan, "--data", data).code == 0
    answer = run("apply", plan, model, "-o", out, "--device", "cuda")
    assert answer.code == 1
    assert "the device 'cuda' is for weight-only recipes and fine-tuning" in answer.err


def test_the_options_are_short_for_fields_of_the_recipe():
    assert RecipeChoice(recipe="int8", fine_tune="adaquant").load().fine_tune == AdaQuant()
    chosen = RecipeChoice(recipe="int8", fine_tune="adaround", iterations=7).load()
    assert chosen.fine_tune == AdaRound(iterations=7)
    weights = RecipeChoice(recipe="int4", fine_tune="signround", iterations=7).load()
    assert weights.fine_tune == SignRound(iterations=7)
    for settings, method in (
        (["fine_tune=adaquant"], AdaQuant()),
        (["fine_tune.iterations=9", "fine_tune=adaround"], AdaRound(iterations=9)),
        (['fine_tune={"method": "adaround", "batch_size": 1}'], AdaRound(batch_size=1)),
        (["fine_tune=null"], None),
    ):
        assert change_recipe(Recipe(), settings).fine_tune == method


def test_a_recipe_that_fine_tunes_keeps_its_settings_under_the_same_method(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(Recipe(fine_tune=AdaRound(batch_size=5, iterations=50)).to_json())
    chosen = RecipeChoice(recipe=str(file), fine_tune="adaround", iterations=7).load()
    assert chosen.fine_tune == AdaRound(batch_size=5, iterations=7)
    assert RecipeChoice(recipe=str(file), fine_tune="adaquant").load().fine_tune == AdaQuant()
    assert RecipeChoice(recipe=str(file), iterations=8).load().fine_tune == AdaRound(
        batch_size=5, iterations=8
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"fine_tune": "adarond"},
            "unknown method 'adarond' in 'fine_tune'. Did you mean 'adaround'",
        ),
        ({"iterations": 5}, "add --fine-tune adaround, adaquant or signround"),
        ({"fine_tune": "adaround", "iterations": 0}, "must be at least 1"),
        ({"fine_tune": "adaround", "settings": ["fine_tune.iteration=5"]}, "'iteration'"),
        ({"fine_tune": "adaround", "dynamic": True}, "no effect in dynamic mode"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(options, sentence):
    with pytest.raises(RecipeError, match=sentence):
        RecipeChoice(**options).load()


@pytest.mark.slow
def test_a_work_folder_keeps_each_block_and_gives_the_same_bytes(run, model, data, out, tmp_path):
    work, other = tmp_path / "work", tmp_path / "other.onnx"
    words = ("quantize", model, "--data", data, *SHORT, "--quiet")
    assert run(*words, "-o", out).code == 0
    assert run(*words, "-o", other, "--work", work).code == 0
    kept = sorted(work.glob("*.safetensors"))
    assert kept and out.read_bytes() == other.read_bytes()
    kept[0].unlink()  # as if the run had been stopped before
    again = run(*words, "-o", other, "--work", work)
    assert again.code == 0
    assert out.read_bytes() == other.read_bytes()
    assert sorted(work.glob("*.safetensors")) == kept
    refused = run(*words, "-o", other, "--work", work, "--limit", "8")
    assert refused.code == 1
    assert "of another model, recipe or data; delete it" in refused.err


@pytest.mark.slow
def test_an_interrupted_command_says_how_to_go_on(run, model, data, out, tmp_path, monkeypatch):
    from bitwright.jobs.fine_tuning.segment import SegmentLearner

    learn, work = SegmentLearner.learn, tmp_path / "work"
    words = ("quantize", model, "-o", out, "--data", data, *SHORT, "--work", work)

    def learn_the_first(self, index, *rows):
        if index:
            raise KeyboardInterrupt
        return learn(self, index, *rows)

    with monkeypatch.context() as patch:
        patch.setattr(SegmentLearner, "learn", learn_the_first)
        stopped = run(*words)
    assert stopped.code == 130
    assert stopped.err == "error: interrupted; the same command goes on from here.\n"
    assert len(list(work.glob("*.safetensors"))) == 1 and not out.exists()
    assert run(*words).code == 0 and out.exists()


@pytest.mark.slow
def test_a_terminal_sees_each_block_with_its_error_before_and_after(model, data, out, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "150")
    recipe = Recipe(fine_tune=AdaRound(iterations=3))
    result = quantize(model, data=data, recipe=recipe)
    shown = terminal.getvalue()
    assert "Fine-tuning" in shown
    notes = [note for note in result.plan.notes if note.startswith("fine-tuning: ")]
    # A bar is drawn a few times a second, and shows what was finished last.
    assert any(note.removeprefix("fine-tuning: ") in shown for note in notes)
