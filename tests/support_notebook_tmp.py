import sys

import pytest

from bitwright.assess.notebook import data_frame, output_section
from bitwright.assess.outputs import OutputComparison
from bitwright.errors import MissingPackageError


def test_outputs_are_rows_of_figures():
    title, columns, [row] = output_section("T", [OutputComparison("y", 31.25, 0.5, 0.1, None)])
    assert (title, len(columns)) == ("T", len(row))
    assert row == ("y", "31.2", "0.50000", "0.1", "")


def test_a_table_needs_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="install it"):
        data_frame([])
