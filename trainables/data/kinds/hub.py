"""A data set of the Hugging Face hub, read through `datasets`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trainables.data.kind import TextData, register
from trainables.data.sources.files import files_below, files_sha256
from trainables.data.sources.source import Counts, Stretch, TextSource, check_field, rows_of_text
from trainables.errors import DataError
from trainables.storage.storage import FULL

#: Seconds that the hub may take to answer whether a data set exists. This check comes first, because `datasets` 5.2
#: retries for 23 s and more before it reports that there is no network.
TIMEOUT = 8.0
#: Rows converted at a time.
ROWS = 256


@register
class HubData(TextData):
    """A data set of the Hugging Face hub, read through `datasets`."""

    kind: Literal["hub"] = "hub"
    name: str = Field(
        min_length=1, description="of the data set, such as HuggingFaceFW/fineweb-edu, or a folder"
    )
    config: str | None = Field(default=None, description="its configuration, such as sample-10BT")
    split: str = Field(default="train", description="the split that is read")
    field: str = Field(default="text", description="the column that holds the text")
    revision: str | None = Field(default=None, description="a commit, which fixes the content")
    streaming: bool = Field(default=True, description="read what is needed, without a download of the whole")

    def source_identity(self, base: Path | None) -> dict[str, Any]:
        """Name, configuration, split, revision and field, without network; of a local folder also its files.

        Name a revision to fix the content.
        """
        names = {key: getattr(self, key) for key in ("name", "config", "split", "revision", "field")}
        files = None
        # `datasets` also accepts a folder on this machine.
        if base and (base / self.name).is_dir():
            files = files_sha256(files_below(base / self.name, "data.name"), "data.name")
        return {"kind": self.kind, **names, "local": files}

    def source(self, base: Path) -> TextSource:
        """Each row is a document. The network is not used before the text is read.

        The cache of `datasets` is used, so a data set can be downloaded in advance for machines without network.
        """
        counts, record = Counts(), self.model_dump(mode="json")
        return TextSource(self.name, lambda: _rows(self, base, counts), None, record, counts=counts)

    def describe(self) -> str:
        """Name, configuration, split and revision."""
        return " ".join(filter(None, (self.name, self.config, self.split, self.revision)))


def _rows(data: HubData, base: Path, counts: Counts) -> Iterator[Stretch]:
    local = (base / data.name).is_dir()
    where = f"the data set {data.name!r}" + (f" ({data.config})" if data.config else "")
    if not local:
        _ask_hub(data, where)
    import datasets
    import pyarrow

    datasets.disable_progress_bars()
    # Its loaders log an error and then raise it; the raised one is reported.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        rows = datasets.load_dataset(
            str(base / data.name) if local else data.name,
            data.config,
            split=data.split,
            revision=None if local else data.revision,
            streaming=data.streaming,
        )
        yield from rows_of_text(_values(rows, data.field, where), data.field, where, counts.reading())
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


def _values(rows: Any, field: str, where: str) -> Iterator[object]:
    """Yield a field of all rows of a `datasets` data set."""
    if rows.column_names is not None:
        check_field(field, rows.column_names, where)
        rows = rows.select_columns([field])
    for piece in rows.iter(batch_size=ROWS):
        check_field(field, piece, where)
        yield from piece[field]


def _ask_hub(data: HubData, where: str) -> None:
    """Raise a DataError unless, within `TIMEOUT`, the hub answers that it has the data set and gives access to it."""
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
        names = {parent.__name__ for parent in type(error).__mro__}
        if names & {"OSError", "TransportError", "HTTPError", "RequestException"}:
            raise _no_network(where, error) from error
        raise


def _no_network(where: str, error: Any) -> DataError:
    return DataError(
        f"{where} cannot be fetched: the hub does not answer ({type(error).__name__}: {error}). Connect to the "
        "network; or download it elsewhere, copy that cache here, and run with HF_HUB_OFFLINE=1 and streaming: "
        "false; or use local files (kind: files) or the text on this machine (kind: python-source)"
    )
