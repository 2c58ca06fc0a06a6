import logging
import signal
import warnings

import onnx
import pytest
from support.models import build, info, node, normal

from bitwright.cli import app


def test_limits_are_raised_for_one_command(run, tmp_path):
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    path = tmp_path / "m.onnx"
    onnx.save(build(nodes, [info("x", [1, 4])], {"y": None}, {"w": normal(4, 4)}), path)
    answer = run("inspect", path, "--limits", "nodes=1")
    assert answer.code == 1
    assert "has 2 nodes, and the limit is 1; if that is right, set --limits nodes=2" in answer.err
    assert run("inspect", path, "--limits", "nodes=2,nesting=1").code == 0
    assert run("inspect", path).code == 0


def test_an_unknown_limit_is_refused(run, tmp_path):
    answer = run("inspect", tmp_path / "m.onnx", "--limits", "node=1")
    assert (answer.code, answer.err) == (
        1,
        "error: there is no limit 'node'. Did you mean 'nodes'?\n",
    )


def test_steps_are_shown_if_asked_for(run, model, data, tmp_path):
    words = ("quantize", model, "--data", data, "--recipe", "int8", "-o", tmp_path / "q.onnx")
    assert run(*words).err == ""
    shown = run(*words, "-v").err.splitlines()
    assert all(line.startswith("step: ") for line in shown)
    assert any(line.startswith("step: observe ranges: ") for line in shown)
    assert run(*words, "-q").out == ""
    assert logging.getLogger("bitwright").handlers == []


def test_a_log_file_has_steps_decisions_and_what_ended_it(run, model, data, tmp_path):
    log = tmp_path / "job.log"
    words = ("quantize", model, "--data", data, "--recipe", "int8", "--log-file", log, "-q")
    assert run(*words, "-o", tmp_path / "q.onnx").code == 0
    text = log.read_text()
    assert "INFO bitwright.jobs.opening: prepare the model: " in text
    assert "DEBUG bitwright.jobs.decision_log: node " in text
    assert run(*words, "-o", tmp_path / "no" / "q.onnx").code == 1
    assert "OutputError: there is no folder" in log.read_text().removeprefix(text)


def test_warnings_are_in_the_log_file_too(run, monkeypatch, tmp_path):
    def warn() -> None:
        """Warn the user."""
        warnings.warn("mind the gap", UserWarning, stacklevel=1)

    monkeypatch.setitem(app._COMMANDS, "inspect", warn)
    assert run("inspect", "--log-file", tmp_path / "log").err == "warning: mind the gap\n"
    assert "WARNING bitwright.cli.app: mind the gap" in (tmp_path / "log").read_text()


def test_a_log_that_cannot_be_written_is_one_sentence(run, model, tmp_path):
    answer = run("inspect", model, "--log-file", tmp_path / "no" / "log")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "cannot write the log" in answer.err


def test_a_log_is_not_appended_to_what_is_none(run, model, tmp_path):
    precious = tmp_path / "m.onnx"
    precious.write_bytes(model.read_bytes())
    answer = run("inspect", precious, "--log-file", precious)
    assert (answer.code, answer.err.count("\n")) == (
        1,
        1,
    ) and "is no log of bitwright" in answer.err
    assert precious.read_bytes() == model.read_bytes()


def test_a_log_on_a_full_disk_ends_with_a_warning(run, tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        answer = run("inspect", tmp_path / "none.onnx", "--log-file", tmp_path / "log")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [line.partition(":")[0] for line in answer.err.splitlines()] == ["warning", "error"]
    assert answer.err.startswith("warning: the log") and answer.code == 1


def test_progress_is_shown_where_there_is_no_terminal(run, model, data, tmp_path, monkeypatch):
    monkeypatch.setattr("bitwright.support.progress.SECONDS_BETWEEN_LINES", 0.0)
    words = ("quantize", model, "--data", data, "--recipe", "int8", "-o", tmp_path / "q.onnx")
    assert "progress: Observing: " in run(*words).err
    assert run(*words, "--quiet").err == ""
    assert run(*words, "--json").err == ""
