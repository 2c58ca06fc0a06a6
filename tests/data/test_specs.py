import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from bitwright.data.specs import InputSpec, as_array, check_sample, session_inputs, split_stack
from bitwright.errors import DataError, ModelError

F32 = np.dtype("float32")
IMAGE = InputSpec("image", F32, ("batch", 3, 4, 4))
IDS = InputSpec("ids", np.dtype("int64"), ("batch", "length"))


def image(batch=1):
    return np.zeros((batch, 3, 4, 4), np.float32)


def session_of(*inputs):
    """A session over Identity nodes, with inputs of the given names, types and shapes."""
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name, _, _ in inputs],
        "inputs",
        [helper.make_tensor_value_info(*entry) for entry in inputs],
        [helper.make_tensor_value_info(f"{name}_out", kind, dims) for name, kind, dims in inputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_specs_are_read_from_a_real_session():
    kinds = {
        "float": (TensorProto.FLOAT, "float32"),
        "half": (TensorProto.FLOAT16, "float16"),
        "double": (TensorProto.DOUBLE, "float64"),
        "byte": (TensorProto.UINT8, "uint8"),
        "char": (TensorProto.INT8, "int8"),
        "int": (TensorProto.INT32, "int32"),
        "long": (TensorProto.INT64, "int64"),
        "bool": (TensorProto.BOOL, "bool"),
        "bf16": (TensorProto.BFLOAT16, "bfloat16"),
        "text": (TensorProto.STRING, "object"),
    }
    specs = session_inputs(
        session_of(*((name, kind, ["n", 2, None]) for name, (kind, _) in kinds.items()))
    )
    assert [(spec.name, spec.dtype.name) for spec in specs] == [
        (name, dtype) for name, (_, dtype) in kinds.items()
    ]
    assert all(spec.shape == ("n", 2, None) for spec in specs)


def test_a_checked_sample_runs_in_the_session_it_was_checked_for():
    session = session_of(("x", TensorProto.FLOAT, ["n", 2]), ("scalar", TensorProto.FLOAT, []))
    sample = check_sample({"scalar": 2.5, "x": [[1.0, 2.0]]}, session_inputs(session), 0)
    x, scalar = session.run(None, sample)
    np.testing.assert_array_equal(x, [[1, 2]])
    assert scalar == 2.5


def test_an_input_that_is_no_tensor_is_refused():
    class Sequence:
        name, type, shape = "boxes", "seq(tensor(float))", None

    class Session:
        def get_inputs(self):
            return [Sequence()]

    with pytest.raises(ModelError, match=r"'boxes' has type seq\(tensor\(float\)\)"):
        session_inputs(Session())


def test_zero_and_negative_dimensions_mean_any_size():
    assert InputSpec("x", F32, (-1, 0, 3)).shape == (None, None, 3)


def test_dimensions_that_onnx_calls_by_a_question_mark_may_differ():
    spec = InputSpec("x", F32, ("?", 3, "?"))
    assert check_sample({"x": np.zeros((1, 3, 5), F32)}, [spec], 0)["x"].shape == (1, 3, 5)


@pytest.mark.parametrize(
    ("value", "specs", "words"),
    [
        ({"imgae": image()}, [IMAGE], ["sample 5", "'imgae'", "Did you mean 'image'?"]),
        ({"image": image()}, [IMAGE, IDS], ["sample 5", "no value", "'ids'", "every sample"]),
        ({"image": image().astype(np.uint8)}, [IMAGE], ["takes float32", "uint8", "astype"]),
        ({"ids": np.zeros((1, 2))}, [IDS], ["takes int64", "float64", ".astype(np.int64)"]),
        ({"ids": np.zeros((1, 2), bool)}, [IDS], ["takes int64", "bool"]),
        ({"image": image()[0]}, [IMAGE], ["[batch,3,4,4]", "[3,4,4]", "array[np.newaxis]"]),
        ({"image": np.zeros((3, 4), np.float32)}, [IMAGE], ["[3,4]", "reshape it to 4"]),
        (
            {"image": np.zeros((1, 4, 4, 3), np.float32)},
            [IMAGE],
            ["looks like NHWC", "transpose(0, 3, 1, 2)"],
        ),
        ({"image": [[1.0], [1.0, 2.0]]}, [IMAGE], ["'image' cannot be read as an array"]),
        (
            {"image": image(2), "ids": np.zeros((1, 2), np.int64)},
            [IMAGE, IDS],
            ["'batch' is 2 in input 'image' and 1 in input 'ids'", "same size"],
        ),
        ({"image": np.full((1, 3, 4, 4), 1e300)}, [IMAGE], ["48 values", "too large for float32"]),
        ([image()], [IMAGE], ["sample 5 is a list", "give a dict"]),
    ],
)
def test_a_sample_that_does_not_fit_is_refused_with_its_remedy(value, specs, words):
    with pytest.raises(DataError) as caught:
        check_sample(value, specs, 5)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_non_finite_values_are_counted_and_named(bad, dtype):
    spec = InputSpec("image", np.dtype(dtype), None)
    array = np.zeros((2, 3), dtype)
    array[0, 1] = array[1, 2] = bad
    with pytest.raises(DataError, match="sample 3: input 'image' holds 2 NaN or infinite") as error:
        check_sample({"image": array}, [spec], 3)
    assert "leave the sample out" in str(error.value)


def test_the_file_of_a_sample_is_named():
    with pytest.raises(DataError, match=r"sample 1 \(batch.npz\)"):
        check_sample({}, [IMAGE], 1, origin="batch.npz")


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_are_converted_exactly_or_not_at_all(values):
    spec = InputSpec("ids", np.dtype("int32"), None)
    given_array = np.array(values, np.int64)
    if all(-(2**31) <= value < 2**31 for value in values):
        checked = check_sample({"ids": given_array}, [spec], 0)["ids"]
        assert checked.dtype == np.int32
        assert checked.tolist() == values
    else:
        with pytest.raises(DataError, match="do not fit"):
            check_sample({"ids": given_array}, [spec], 0)


def test_negative_numbers_do_not_become_unsigned():
    spec = InputSpec("x", np.dtype("uint8"), None)
    with pytest.raises(DataError, match="do not fit"):
        check_sample({"x": np.array([-1])}, [spec], 0)


def test_floats_of_other_width_and_byte_order_are_converted():
    for dtype in (np.float16, np.float64, ">f4", ml_dtypes.bfloat16):
        checked = check_sample({"image": image().astype(dtype)}, [IMAGE], 0)["image"]
        assert checked.dtype == F32
        assert checked.flags.c_contiguous


def test_an_array_that_already_fits_is_not_copied():
    array = image()
    assert check_sample({"image": array}, [IMAGE], 0)["image"] is array


def test_an_empty_dimension_is_allowed():
    # A decoder's key/value cache is empty on its first step.
    spec = InputSpec("past", F32, (1, "past_length", 4))
    assert check_sample({"past": np.zeros((1, 0, 4), np.float32)}, [spec], 0)["past"].size == 0


def test_the_result_has_the_order_of_the_model():
    sample = {"ids": np.zeros((1, 2), np.int64), "image": image()}
    assert list(check_sample(sample, [IMAGE, IDS], 0)) == ["image", "ids"]


def test_strings_pass_for_a_string_input():
    spec = InputSpec("text", np.dtype(object), (None,))
    assert check_sample({"text": ["a", "b"]}, [spec], 0)["text"].tolist() == ["a", "b"]


def test_ort_values_are_read():
    value = ort.OrtValue.ortvalue_from_numpy(image())
    assert as_array(value).shape == (1, 3, 4, 4)


def split(arrays, *specs, lone=True):
    count, samples = split_stack(arrays, specs, origin="data", lone=lone)
    samples = list(samples)
    assert len(samples) == count
    return samples


@given(count=st.integers(1, 6), batch=st.integers(1, 4))
def test_an_extra_leading_dimension_counts_samples(count, batch):
    spec = InputSpec("x", F32, (batch, 2))
    stack = np.arange(count * batch * 2, dtype=np.float32).reshape(count, batch, 2)
    samples = split({"x": stack}, spec)
    np.testing.assert_array_equal(np.stack([sample["x"] for sample in samples]), stack)


@given(count=st.integers(1, 6), batch=st.integers(1, 4))
def test_a_multiple_of_the_fixed_batch_is_cut_into_batches(count, batch):
    spec = InputSpec("x", F32, (batch, 2))
    rows = np.arange(count * batch * 2, dtype=np.float32).reshape(count * batch, 2)
    samples = split({"x": rows}, spec)
    assert len(samples) == count
    np.testing.assert_array_equal(np.concatenate([sample["x"] for sample in samples]), rows)
    for index, sample in enumerate(samples):
        check_sample(sample, [spec], index)


def test_an_open_batch_is_cut_only_when_the_array_is_all_there_is():
    spec = InputSpec("x", F32, ("batch", 2))
    rows = np.zeros((5, 2), np.float32)
    assert [s["x"].shape for s in split({"x": rows}, spec)] == [(1, 2)] * 5
    assert [s["x"].shape for s in split({"x": rows}, spec, lone=False)] == [(5, 2)]


def test_what_fits_no_rule_is_handed_on_for_the_check_to_explain():
    spec = InputSpec("x", F32, (4, 2))
    assert split({"x": np.zeros((6, 2))}, spec)[0]["x"].shape == (6, 2)
    assert split({"y": np.zeros((6, 2))}, spec)[0]["y"].shape == (6, 2)
    assert split({"x": np.zeros(())}, spec)[0]["x"].shape == ()


def test_an_input_with_one_sample_is_used_for_all():
    image, size = InputSpec("image", F32, (1, 2)), InputSpec("size", F32, (1, 3))
    samples = split({"image": np.zeros((4, 2)), "size": np.ones((1, 3))}, image, size)
    assert [s["size"].shape for s in samples] == [(1, 3)] * 4


def test_inputs_of_different_length_are_refused():
    a, b = InputSpec("a", F32, (1, 2)), InputSpec("b", F32, (1, 2))
    with pytest.raises(DataError, match="different numbers of samples \\('a' 4, 'b' 3\\)"):
        split({"a": np.zeros((4, 2)), "b": np.zeros((3, 2))}, a, b)
