"""`bitwright publish` as it is typed."""

import json

from support.published import make_encoder_folder

from bitwright.cli import main


def test_a_folder_is_published_and_the_tables_say_what_is_there(tmp_path, capsys):
    folder = make_encoder_folder(tmp_path / "encoder")
    words = ["publish", str(folder), "-o", str(tmp_path / "out"), "--variants", "fp32,q4"]
    assert main([*words, "--limit", "40kB", "--no-reports"]) == 0
    shown = capsys.readouterr().out
    assert "onnx/model_q4.onnx" in shown and "above 40.0 kB" in shown
    assert "Card: " in shown and not (tmp_path / "out" / "reports").exists()


def test_the_result_is_one_object_for_programs(tmp_path, capsys):
    folder = make_encoder_folder(tmp_path / "encoder")
    words = ["publish", str(folder), "-o", str(tmp_path / "out"), "--variants", "fp16", "--json"]
    assert main([*words, "--for", "onnxruntime"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["variants"]
    assert one["file"] == "model_fp16.onnx" and one["reason"] is None


def test_an_unknown_variant_is_one_sentence(tmp_path, capsys):
    folder = make_encoder_folder(tmp_path / "encoder")
    assert main(["publish", str(folder), "-o", str(tmp_path / "o"), "--variants", "q44"]) == 1
    assert "there is no variant 'q44'. Did you mean 'q4'?" in capsys.readouterr().err
