"""Results as pandas tables, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedspecial.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedspecial.report.result import Result

_COLUMNS = ("seed", "acc", "bwt", "worst_drop", "forgetting", "seconds_per_round", "bytes_up", "bytes_down")


def comparison_frame(results: Mapping[str, Sequence[Result]]) -> DataFrame:
    """One row per run."""
    rows = [
        {"method": name, **{key: getattr(run, key) for key in _COLUMNS}}
        for name, runs in results.items()
        for run in runs
    ]
    return data_frame(rows, columns=["method", *_COLUMNS])


def data_frame(content: Any, **names: Any) -> DataFrame:
    try:
        import pandas
    except ImportError:
        raise InputError("to_frame: the package pandas is not installed (pip install pandas)") from None
    return pandas.DataFrame(content, **names)
