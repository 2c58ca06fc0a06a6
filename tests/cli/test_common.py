import onnx
from support.models import build, info, node, normal


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
