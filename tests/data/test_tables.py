import numpy as np
import pytest

from bitwright.data import InputSpec, open_data
from bitwright.errors import DataError

F32 = np.dtype("float32")
TABLE = InputSpec("features", F32, ("batch", 2))


def save(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def test_the_columns_of_a_table_are_the_features_and_a_row_a_sample(tmp_path):
    path = save(tmp_path, "age,income,label\n30,1.5,0\n41,-2e3,1\n")
    samples = [sample["features"] for sample in open_data(path, [TABLE])]
    np.testing.assert_array_equal(samples, np.float32([[[30, 1.5]], [[41, -2000]]]))


def test_inputs_of_their_own_find_their_columns(tmp_path):
    path = save(tmp_path, "city,age,other\nRome,30,x\nOslo,41,y\n")
    age = InputSpec("age", np.dtype("int64"), (None, 1))
    city = InputSpec("city", np.dtype(object), (None, 1))
    samples = list(open_data(path, [age, city]))
    assert [(int(s["age"][0, 0]), s["city"][0, 0]) for s in samples] == [(30, "Rome"), (41, "Oslo")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b,c\n1,2,3\n", "has 3 columns that are no label, and input 'features' takes 2"),
        ("a,b\n1,\n", "line 2 of .*has '' for 'b', which is no number"),
        ("a,b\n1,2,3\n", "line 2 of .*has 3 values for 2 columns"),
        ("a,b\n", "has no rows"),
        ("", "has no rows"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        list(open_data(save(tmp_path, text), [TABLE]))


def test_a_missing_column_is_named(tmp_path):
    path = save(tmp_path, "ages,city\n1,Rome\n")
    specs = [InputSpec("age", F32, (None, 1)), InputSpec("city", np.dtype(object), (None, 1))]
    with pytest.raises(DataError, match=r"no column .* 'age'\. Did you mean 'ages'"):
        open_data(path, specs)


def test_a_table_feeds_no_images(tmp_path):
    with pytest.raises(DataError, match="is a table, and input 'x' takes"):
        open_data(save(tmp_path, "a\n1\n"), [InputSpec("x", F32, (1, 3, 8, 8))])
