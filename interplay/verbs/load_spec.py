"""Read the spec of a study."""

from pathlib import Path

import study.spec.study
from core.errors import shortened
from study.errors import SpecError
from study.spec.study import StudySpec, parse_spec
from study.spec.yaml_file import override


def load_spec(spec: str | Path | StudySpec, *changes: str, results: str | Path = "results") -> StudySpec:
    """Read a preset, a YAML file or a study of `results`, with changes such as "training.seeds=5".

        interplay.load_spec("quickstart", "training.seeds=5").frontier.depths

    Of a spec, only changes are applied.

    Raises:
        SpecError: there is no such preset or file, or a key or value is wrong.
    """
    for change in changes:
        if not isinstance(change, str):
            raise SpecError(
                f"{shortened(repr(change))} changes no key of a spec; write each change as text: 'training.seeds=5'."
            )
    if isinstance(spec, StudySpec):
        raw = spec.model_dump(mode="json", exclude_unset=True)
        return parse_spec(override(raw, changes), spec.name) if changes else spec
    return study.spec.study.load_spec(str(spec), changes, Path(results))


def name_of(spec: str | Path | StudySpec) -> str:
    """Return the argument SPEC of a command that means the same."""
    return spec.name if isinstance(spec, StudySpec) else str(spec)
