"""Nothing becomes public, or stops being so, by accident: compare with tests/public_surface.txt.

After a wanted change, write the list anew: python tests/test_public_surface.py
"""

import importlib
import inspect
from pathlib import Path

import pytest

LIST = Path(__file__).parent / "public_surface.txt"
MODULES = (
    "bitwright",
    "bitwright.compat.neural_compressor.weight_only",
    "bitwright.compat.nncf",
    "bitwright.compat.onnxruntime",
    "bitwright.compat.onnxruntime.matmul_nbits_quantizer",
    "bitwright.compat.quark",
    "bitwright.compat.vai_q_onnx",
)


def public_names():
    """Return 'module.name' for each public name, and its signature where it is a function."""
    lines = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(module.__all__):
            value = getattr(module, name)
            shown = ""
            if inspect.isfunction(value):
                shown = f"({', '.join(inspect.signature(value).parameters)})"
            lines.append(f"{module_name}.{name}{shown}")
    return lines


def test_the_public_names_are_those_on_the_list():
    assert public_names() == LIST.read_text(encoding="utf-8").splitlines()


def test_a_name_that_tools_share_is_not_at_the_top_and_says_where_it_is():
    import bitwright

    with pytest.raises(AttributeError, match=r"bitwright\.compat\.onnxruntime or"):
        _ = bitwright.quantize_static
    assert not hasattr(bitwright, "no_such_name")


@pytest.mark.parametrize("module_name", MODULES)
def test_every_public_name_can_be_had_and_is_listed_once(module_name):
    module = importlib.import_module(module_name)
    assert len(set(module.__all__)) == len(module.__all__)
    assert set(module.__all__) <= set(dir(module))


def documented():
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            is_ours = getattr(value, "__module__", "").startswith("bitwright.")
            if is_ours and (inspect.isclass(value) or inspect.isfunction(value)):
                yield pytest.param(value, id=f"{module_name}.{name}")


@pytest.mark.parametrize("value", list(documented()))
def test_every_public_name_says_what_it_gives(value):
    assert (value.__doc__ or "").strip(), value
    if not value.__module__.startswith("bitwright.compat"):
        assert ">>>" in value.__doc__, f"{value.__name__} has no example"
    if inspect.isclass(value):
        for name, member in vars(value).items():
            if not name.startswith("_") and inspect.isfunction(member):
                assert (member.__doc__ or "").strip(), f"{value.__name__}.{name}"


def test_an_unknown_name_is_an_attribute_error():
    import bitwright

    with pytest.raises(AttributeError, match="quantise"):
        bitwright.quantise  # noqa: B018


if __name__ == "__main__":
    LIST.write_text("\n".join(public_names()) + "\n", encoding="utf-8")
