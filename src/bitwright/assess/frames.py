"""Results as pandas tables, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitwright.errors import MissingPackageError

__all__ = ["data_frame"]


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """Return rows as a pandas DataFrame, or say that pandas is missing.

    `columns` names them where there may be no row to read them from.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError(
            "to_pandas needs pandas, which is not installed; install it (pip install pandas), "
            "or use to_dict."
        ) from error
    return pd.DataFrame(rows, columns=columns)
