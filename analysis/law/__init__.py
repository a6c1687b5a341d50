"""Crossings, the threshold law through them, its rivals and its projection.

Names are imported on first use, so that a module of this package loads no more than it needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.law.crossings import Crossings, find_crossings
    from analysis.law.projection import LEVINE2020, Law, recommend
    from analysis.law.threshold import ThresholdFit, fit_threshold

_HOMES = {
    "Crossings": "crossings",
    "LEVINE2020": "projection",
    "Law": "projection",
    "ThresholdFit": "threshold",
    "find_crossings": "crossings",
    "fit_threshold": "threshold",
    "recommend": "projection",
}

__all__ = ["LEVINE2020", "Crossings", "Law", "ThresholdFit", "find_crossings", "fit_threshold", "recommend"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
