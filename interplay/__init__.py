"""Interplay in Python: what the command does, on names, paths and DataFrames, with results as objects.

    import interplay
    answer = interplay.fit(frame, columns={"depth": "n_layer", "width": "d_model", "loss": "val_loss"})
    answer.recommend(1e9)
    interplay.recommend(flops=1e20)

Nothing is printed. A source of runs is the name of a preset, the path of a YAML file or a spec, for the rows of a study
in `results`; the path of a run table; the name `mlflow:EXPERIMENT`; or a DataFrame of any library or a list of dicts,
with one row per run. A result has `to_json()`, the document that the command prints with `--json`, and shows itself in
a terminal (`rich.print`) and in a notebook; `read` returns a `RunTable`, and `load_spec` a `StudySpec`.

Wrong input raises a ValueError, with one paragraph on what is wrong and the fix:

- `study.errors.SpecError`: a spec, a change of it or a folder cannot be used, a study has no rows, or an argument does
  not go with the source;
- `core.errors.InputError`: a run table, a column, a fit, a law, a size or a level cannot be used;
- `trainables.errors.InputError`: the data or a storage cannot be used (SpecError is one as well).

A storage that cannot be reached raises a ConnectionError, and a file that cannot be written another OSError.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interplay.verbs.audit import audit, audit_rules
    from interplay.verbs.compare import compare
    from interplay.verbs.cost import cost
    from interplay.verbs.export import export
    from interplay.verbs.fit import fit
    from interplay.verbs.init import init
    from interplay.verbs.load_spec import load_spec
    from interplay.verbs.plan import plan, presets, try_steps
    from interplay.verbs.power import power
    from interplay.verbs.read import read
    from interplay.verbs.recommend import recommend
    from interplay.verbs.report import report
    from interplay.verbs.run import run
    from interplay.verbs.status import status

__all__ = [
    "audit",
    "audit_rules",
    "compare",
    "cost",
    "export",
    "fit",
    "init",
    "load_spec",
    "plan",
    "power",
    "presets",
    "read",
    "recommend",
    "report",
    "run",
    "status",
    "try_steps",
]
__version__ = version("interplay")

#: Modules of functions that have no module of their own name.
_MODULES = {"audit_rules": "audit", "presets": "plan", "try_steps": "plan"}


def __getattr__(name: str) -> Any:
    """Load a function when it is first used: each takes up to seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(import_module(f"interplay.verbs.{_MODULES.get(name, name)}"), name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
