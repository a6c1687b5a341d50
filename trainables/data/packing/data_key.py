"""The identity of packed data: a hash of its content and of all that shapes it, without packing anything."""

import hashlib
import json
from pathlib import Path
from typing import Any

from trainables.data.spec import (
    BYTES_VOCABULARY,
    DataSpec,
    FilesData,
    HierarchyData,
    HubData,
    MixtureData,
    PythonSourceData,
)
from trainables.data.tasks.spec import AnyTask, TaskData

#: Raised whenever a code change alters what is packed from the same data, so that old stores are not mistaken for new.
DATA_VERSION = 1


def vocabulary_size(spec: DataSpec) -> int:
    """Token ids of a data set, known without reading it: end of text or the start token included."""
    if isinstance(spec, HierarchyData):
        return spec.vocabulary + 1
    if isinstance(spec, TaskData):
        return spec.ids
    return BYTES_VOCABULARY if spec.tokenizer == "bytes" else spec.vocabulary or 0


def data_key(spec: DataSpec, context: int, base: Path = Path()) -> str:
    """Sixteen hex digits: the same content packed the same way has the same key, wherever it lies.

    Files are hashed (streamed, and once per process while they do not change). A hub data set is identified by its
    name, configuration, split, revision and field, without network: name a revision to be sure of its content.

    Args:
        spec: the data.
        context: tokens of a sequence; it matters to the hierarchy and to tasks only, whose rows it shapes.
        base: folder that relative paths start from.

    Raises:
        DataError: files are missing or may not be read.
        InputError: the grammar is impossible, or it or the task does not fit the context.
    """
    return _digest(_identity(spec, context, base))


def outline(spec: DataSpec, context: int) -> str:
    """Sixteen hex digits of the same identity without the content: of what a spec says, not of what lies there.

    Paths are left out. Two specs of different outline never have the same key.
    """
    return _digest(_identity(spec, context, None))


def _identity(spec: DataSpec, context: int, base: Path | None) -> dict[str, Any]:
    source = _mixture(spec, context, base) if isinstance(spec, MixtureData) else _source(spec, context, base)
    if isinstance(spec, HierarchyData | TaskData):
        return {"version": DATA_VERSION, "source": source}
    return {
        "version": DATA_VERSION,
        "source": source,
        "tokenizer": spec.tokenizer,
        "vocabulary": vocabulary_size(spec),
        "validation_fraction": spec.validation_fraction,
        "validation_tokens": spec.validation_tokens,
        "max_tokens": spec.max_tokens,
    }


def _mixture(spec: MixtureData, context: int, base: Path | None) -> dict[str, Any]:
    total = sum(part.weight for part in spec.parts)
    return {
        "kind": spec.kind,
        "parts": [
            {"share": part.weight / total, "source": _source(part.data, context, base)} for part in spec.parts
        ],
    }


def _source(
    spec: HierarchyData | AnyTask | FilesData | HubData | PythonSourceData, context: int, base: Path | None
) -> dict[str, Any]:
    """What identifies a source; without a base, what of it stands in the spec."""
    # Imported here: a plan of hierarchy data needs neither numpy nor a walk through the packages.
    if isinstance(spec, HierarchyData):
        from trainables.data.sources.hierarchy import check_grammar

        check_grammar(spec, context)
        return {**spec.model_dump(mode="json"), "context": context}
    if isinstance(spec, TaskData):
        from trainables.data.tasks.rows import check_task

        check_task(spec, context)
        return {**spec.model_dump(mode="json"), "context": context}
    if isinstance(spec, FilesData):
        return {"kind": spec.kind, "files": _files(spec, base)}
    if isinstance(spec, HubData):
        return {
            "kind": spec.kind,
            **{k: getattr(spec, k) for k in ("name", "config", "split", "revision", "field")},
            "local": _local(spec, base),
        }
    return {"kind": spec.kind, "max_bytes": spec.max_bytes, "files": _python_files(spec, base)}


def _files(spec: FilesData, base: Path | None) -> list[list[str | None]] | None:
    if base is None:
        return None
    from trainables.data.sources.file_listing import list_files
    from trainables.data.sources.hashing import file_sha256

    return [
        [file.format, None if file.format == "text" else spec.field, file_sha256(file.path)]
        for file in list_files(spec, base)
    ]


def _local(spec: HubData, base: Path | None) -> list[str] | None:
    if base is None:
        return None
    from trainables.data.sources.hub import local_folder

    return local_folder(spec, base)


def _python_files(spec: PythonSourceData, base: Path | None) -> list[str] | None:
    if base is None:
        return None
    from trainables.data.sources.python_source import roots, take_files

    return [file.sha256 for file in take_files(spec.max_bytes, roots())]


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
