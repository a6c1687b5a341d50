"""The file of a new study, which `interplay init` writes: its text, and the schema beside it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Group, RenderableType

from core.numbers import duration
from interplay.result import VerbResult
from interplay.terminal import pasteable
from study.plan.plan import Plan, make_plan
from study.spec.schema import json_schema
from study.spec.study import parse_spec

#: The schema that editors read, beside the file of the study.
SCHEMA = "interplay.schema.json"
#: Models wider than their vocabulary of bytes have one of so many entries.
BPE_VOCABULARY = 4096

TEMPLATE = """\
# yaml-language-server: $schema={schema}
# Written by: {command}
# {cells} cells, about {time}. `interplay plan {file}` shows them, `interplay run {file}` trains them.
# Keys that are not here have their defaults; docs/spec.md lists all.
data:
{data}

frontier:
  heads: {heads}
{shapes}

training:
{network}{length}
  context: {context}
  batch: {batch}
{rate}
  # One seed gives no interval.
  seeds: {seeds}

{rates}

resources:
  device: {device}
"""


@dataclass(frozen=True, repr=False)
class NewStudy(VerbResult):
    """A study that `init` wrote: its file, and sentences about it."""

    file: Path
    sentences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the path of the file and the sentences."""
        return {"file": str(self.file), "sentences": list(self.sentences)}

    def __rich__(self) -> RenderableType:
        return Group(*(pasteable(sentence) for sentence in self.sentences))


def plan_of_file(name: str, values: Mapping[str, object]) -> Plan:
    """The plan of the study of a file."""
    # Without the head: a name that the spec refuses may hold a line break.
    head = dict.fromkeys(("schema", "command", "file", "cells", "time"), "")
    raw = yaml.safe_load(TEMPLATE.format(**head, **values))
    return make_plan(parse_spec({"name": name, **raw}, f"the study {name}")).trainable()


def write_study(
    file: Path,
    head: Mapping[str, str],
    values: Mapping[str, object],
    plan: Plan,
    device: str,
    sentences: Sequence[str],
) -> NewStudy:
    """Write the file of a study and its schema; the first sentence is about the study, the others are notes."""
    time, shown = duration(plan.hours * 3600), shlex.quote(str(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    (file.parent / SCHEMA).write_text(json.dumps(json_schema(), indent=1), encoding="utf-8")
    text = TEMPLATE.format(cells=len(plan.cells), time=time, **head, **values)
    file.write_text(text, encoding="utf-8")
    first, *notes = sentences
    return NewStudy(
        file,
        (
            f"{file}: {len(plan.cells)} cells, about {time} on {device}: {first}.",
            *notes,
            f"Next: interplay plan {shown}, then interplay run {shown}",
        ),
    )


def context_of(device: str) -> int:
    """Return the tokens of a sequence on a device."""
    return 128 if device == "cpu" else 512


def network_line(network: str) -> str:
    """Return the line of the section `training` that names a family; empty for the default one."""
    return "" if network == "gpt2" else f"  network: {network}\n"


def data_lines(data: str | None, *, is_wide: bool) -> str:
    """The section `data`, with a vocabulary for wide models."""
    source = [
        "  # The Python sources of this machine; for your own text `path: FILE or FOLDER` instead.",
        "  kind: python-source",
    ]
    if data is not None:
        path = str(Path(data).expanduser().resolve())
        source = [f"  path: {json.dumps(path, ensure_ascii=False)}"]
    if is_wide:
        source += [
            "  # A model wider than its vocabulary gains little from the width (Wies et al. 2021).",
            "  tokenizer: bpe",
            f"  vocabulary: {BPE_VOCABULARY}",
        ]
    return "\n".join(source)
