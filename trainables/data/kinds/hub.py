"""A data set of the Hugging Face hub, read through `datasets`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from trainables.data.kind import TextData, register
from trainables.data.sources.hashing import file_sha256
from trainables.data.sources.rows_of_text import check_field, rows_of_text
from trainables.data.sources.source import Source, Stretch
from trainables.errors import DataError
from trainables.storage.disk import FULL

#: Seconds that the hub may take to answer whether a data set exists. This check comes first, because `datasets` 5.2
#: retries for 23 s and more before it reports that there is no network.
TIMEOUT = 8.0
#: Rows converted at a time.
ROWS = 256


@register
class HubData(TextData):
    """A data set of the Hugging Face hub, read through `datasets`."""

    kind: Literal["hub"] = "hub"
    name: str
    config: str | None = None
    split: str = "train"
    field: str = "text"
    revision: str | None = None
    streaming: bool = True

    def source_identity(self, context: int, base: Path | None) -> dict[str, Any]:
        """Name, configuration, split, revision and field, without network; of a local folder also its files.

        Name a revision to fix the content.
        """
        names = {key: getattr(self, key) for key in ("name", "config", "split", "revision", "field")}
        return {"kind": self.kind, **names, "local": base and self._local_files(base)}

    def _local_files(self, base: Path) -> list[str] | None:
        """Hashes of the files if the name is a folder on this machine, which `datasets` also accepts; else None."""
        folder = base / self.name
        if not folder.is_dir():
            return None
        return [file_sha256(p) for p in sorted(folder.rglob("*")) if p.is_file()]

    def source(self, context: int, base: Path) -> Source:
        """Each row is a document. The network is not used before the text is read.

        The cache of `datasets` is used, so a data set can be downloaded in advance for machines without network.
        """
        notes: list[str] = []

        def stretches() -> Iterator[Stretch]:
            yield from _rows(self, base, notes)

        return Source(self.name, stretches, None, self.model_dump(mode="json"), notes)

    def describe(self) -> str:
        """Name, configuration, split and revision."""
        return " ".join(filter(None, (self.name, self.config, self.split, self.revision)))


def _rows(data: HubData, base: Path, notes: list[str]) -> Iterator[Stretch]:
    local = (base / data.name).is_dir()
    where = f"the data set {data.name!r}" + (f" ({data.config})" if data.config else "")
    if not local:
        _ask_hub(data, where)
    import pyarrow

    try:
        with _quiet_datasets() as datasets:
            rows = datasets.load_dataset(
                str(base / data.name) if local else data.name,
                data.config,
                split=data.split,
                revision=None if local else data.revision,
                streaming=data.streaming,
            )
            yield from rows_of_text(_values(rows, data.field, where), data.field, where, notes)
    except DataError:
        raise
    except ConnectionError as error:
        raise _no_network(where, error) from error
    except (ValueError, RuntimeError, OSError, TypeError, StopIteration, pyarrow.ArrowException) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        raise DataError(
            f"{where} cannot be read: {type(error).__name__}: {error}; check data.name, data.config, data.split and "
            "data.revision against the data set's page"
        ) from error


@contextlib.contextmanager
def _quiet_datasets() -> Iterator[Any]:
    """Yield the `datasets` module without progress bars and error logs; restore its settings afterwards."""
    import datasets

    bars = datasets.are_progress_bars_disabled()
    level = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    # Its loaders log an error and then raise it; the raised one is reported.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield datasets
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


def _values(rows: Any, field: str, where: str) -> Iterator[object]:
    """Yield a field of all rows of a `datasets` data set."""
    columns = rows.column_names
    if columns is not None:
        check_field(field, columns, where)
        rows = rows.select_columns([field])
    for piece in rows.iter(batch_size=ROWS):
        if columns is None:
            check_field(field, piece, where)
        yield from piece[field]


def _ask_hub(data: HubData, where: str) -> None:
    """Check within `TIMEOUT` that the hub can be reached and has the data set.

    Raises:
        DataError: no network, no such data set, no such revision, or no permission.
    """
    import huggingface_hub
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        # `datasets` looks in its cache, and fails at once if there is no copy.
        return
    try:
        huggingface_hub.HfApi().dataset_info(data.name, revision=data.revision, timeout=TIMEOUT)
    except errors.GatedRepoError as error:
        raise DataError(
            f"{where} is gated; accept its terms on its page and log in with `hf auth login`, or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DataError(
            f"{where} has no revision {data.revision!r}; correct or remove data.revision"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise DataError(
            f"{where} is not on the hub, or is private; correct data.name (it looks like `owner/name`: search at "
            "https://huggingface.co/datasets), or log in with `hf auth login`"
        ) from error
    except Exception as error:
        # The HTTP library's own errors (the library changed between hub releases), and timeouts.
        if _is_network(error):
            raise _no_network(where, error) from error
        raise


def _is_network(error: BaseException) -> bool:
    names = {c.__name__ for c in type(error).__mro__}
    return isinstance(error, OSError) or bool(names & {"TransportError", "HTTPError", "RequestException"})


def _no_network(where: str, error: Any) -> DataError:
    return DataError(
        f"{where} cannot be fetched: the hub does not answer ({type(error).__name__}: {error}). Connect to the "
        "network; or download it elsewhere, copy that cache here, and run with HF_HUB_OFFLINE=1 and streaming: "
        "false; or use local files (kind: files) or the text on this machine (kind: python-source)"
    )
