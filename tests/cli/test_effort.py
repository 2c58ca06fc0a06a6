import pytest


@pytest.mark.slow
def test_quantize_lists_the_steps_of_its_effort(run, model, data, out):
    answer = run("quantize", model, "-o", out, "--data", data, "--effort", "medium", "--json")
    assert answer.code == 0
    [note] = [note for note in answer.json["notes"] if note.startswith("effort medium")]
    assert note.count(" dB") > 4
    assert answer.json["samples_are_unseen"]
    assert answer.json["output"] == str(out)


def test_an_unknown_effort_is_one_sentence(run, model, data, out):
    answer = run("quantize", model, "-o", out, "--data", data, "--effort", "hihg")
    assert answer.code
    assert "unknown effort 'hihg'. Did you mean 'high'?" in answer.err
    assert not out.exists()


def test_effort_does_not_go_with_what_was_trained(run, model, out):
    answer = run("quantize", model, "-o", out, "--qat", "--effort", "medium")
    assert answer.code
    assert "--effort does not go with --qat" in answer.err


@pytest.mark.parametrize("command", ["quantize", "plan"])
def test_bias_correction_has_an_option_of_its_own(run, model, data, out, command):
    answer = run(command, model, "-o", out, "--data", data, "--bias-correction", "fast", "--json")
    assert answer.code == 0
    assert any(note.startswith("corrected the biases of ") for note in answer.json["notes"])


def test_an_unknown_mode_of_bias_correction_is_refused(run, model, data, out):
    answer = run("plan", model, "-o", out, "--data", data, "--bias-correction", "quick")
    assert answer.code
    assert "quick" in answer.err
    assert not out.exists()
