"""Ray's own check of a cluster file, with every mistake it finds and not the first alone."""

import contextlib
import copy
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from study.cluster.findings import Report, near

_KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
}


def check_schema(report: Report) -> None:
    """Prepare and validate a copy of the file as `ray up` does, in that order; asks nothing of the network.

    `prepare_config` fills in what Ray adds, and `validate_config` refuses a file without it.
    """
    import jsonschema
    import ray.autoscaler
    from ray.autoscaler._private.cli_logger import SilentClickException
    from ray.autoscaler._private.util import prepare_config, validate_config

    document = copy.deepcopy(report.file.document)
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    wrong = list(jsonschema.Draft7Validator(schema).iter_errors(document))
    for error in wrong:
        for path, text in _sentences(error):
            report.error((*error.absolute_path, *path), text)
    if wrong:
        return
    said = io.StringIO()
    try:
        # Ray prints what it refuses, and ends with an exception that does not repeat it.
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            validate_config(prepare_config(document))
    except SilentClickException:
        report.error((), f"`ray up` would refuse it: {_plain(said.getvalue())}")
    except Exception as error:  # noqa: BLE001 - whatever `ray up` would end with is what the user is told
        report.error((), f"`ray up` would refuse it: {_plain(str(error) or type(error).__name__)}")


def _plain(text: str) -> str:
    """One paragraph of what Ray prints: without colours, line breaks and the end of its last sentence."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text)).strip().rstrip(".")


def _sentences(error: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """What one finding of the schema says: the key below its place, if it is about one, and the words."""
    here = str(error.absolute_path[-1]) if error.absolute_path else "the file"
    match error.validator:
        case "additionalProperties":
            known = error.schema.get("properties", {})
            for key in error.instance:
                if key not in known:
                    yield (str(key),), f"Ray knows no `{key}` here{near(str(key), known) or '; take it out'}"
        case "required":
            for key in error.validator_value:
                if key not in error.instance:
                    yield (), f"`{key}` is missing here, and Ray needs it; add it"
        case "type":
            wanted = error.validator_value
            kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
            yield (), f"`{here}` is {error.instance!r}, and Ray wants {_KINDS.get(kinds, kinds)}"
        case "minimum":
            yield (), f"`{here}` is {error.instance}, and the least is {error.validator_value}"
        case _:
            yield (), f"Ray refuses `{here}`: {error.message}"
