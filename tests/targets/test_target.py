"""Targets are files: each is checked when it is read, and a user's own is given by its path."""

import pytest

from bitwright.errors import TargetError
from bitwright.targets import TARGETS, find_target
from bitwright.targets.target import DATA

OWN = 'name = "mine"\ndescription = "A test."\nrecipe = "int8"\n'


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_has_the_name_of_its_file(name):
    target = find_target(name)
    assert target.name == name
    assert (DATA / f"{name}.toml").is_file()
    for variant in target.variants:
        assert find_target(f"{name}:{variant}").name == f"{name}:{variant}"


def test_a_target_of_the_user_is_a_file_and_may_extend_another(tmp_path):
    text = OWN.replace('"int8"\n', '"npu-cnn"\nextends = "npu-cnn"\nper_tensor = false\n')
    target = find_target(write(tmp_path, text))
    assert (target.name, target.per_tensor) == ("mine", False)
    assert target.limits == TARGETS["npu-cnn"].limits


def test_a_variant_changes_what_it_names(tmp_path):
    path = write(tmp_path, OWN + 'variant = "a"\n[variants.a]\n[variants.b]\nper_tensor = true\n')
    assert not find_target(path).per_tensor
    assert find_target(f"{path}:b").per_tensor
    with pytest.raises(TargetError, match="has no variant 'c'"):
        find_target(f"{path}:c")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "is not TOML"),
        ("", "needs 'name'"),
        (OWN + "per_tensr = true\n", "unknown option 'per_tensr'. Did you mean 'per_tensor'"),
        (OWN + 'types = ["int9"]\n', "int9"),
        (OWN + 'extends = "npu-cn"\n', "extends must be the name of a target.*'npu-cnn'"),
        (OWN + "variants = 3\n", "variants must be tables"),
        (
            OWN + '[[limits]]\nname = "cut"\nops = ["Conv"]\n'
            'bounds = [{ sum = "weigth - output", gives_way = ["output"] }]\n',
            "names no position 'weigth'. Did you mean 'weight'",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence_that_names_it(tmp_path, text, said):
    path = write(tmp_path, text)
    with pytest.raises(TargetError, match=said) as error:
        find_target(path)
    assert "mine.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_or_binary_file_is_named(tmp_path):
    with pytest.raises(TargetError, match=r"none\.toml"):
        find_target(str(tmp_path / "none.toml"))
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TargetError, match="not a text in UTF-8"):
        find_target(str(tmp_path / "mine.toml"))
