"""The run table: read from files or MLflow, typed, and reduced to the rows that may be compared.

Names are imported on first use, so that a module of this package loads no more than it needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.runs.comparison import Comparison, compare
    from analysis.runs.table import RunTable, read_runs

_HOMES = {
    "Comparison": "comparison",
    "RunTable": "table",
    "compare": "comparison",
    "read_runs": "table",
}

__all__ = ["Comparison", "RunTable", "compare", "read_runs"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
