"""A data set of the Hugging Face hub as a source of text, read through `datasets`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainables.data.sources.datasets_reader import quiet_datasets, rows_of_text
from trainables.data.sources.hashing import file_sha256
from trainables.data.sources.source import Source, Stretch
from trainables.data.spec import HubData
from trainables.errors import DataError
from trainables.storage.disk import FULL

#: Seconds that the hub may take to say whether a data set exists. Without this question first, `datasets` 5.2 tries
#: for 23 s and more before it admits that there is no network.
TIMEOUT = 8.0


def hub_source(spec: HubData, base: Path) -> Source:
    """The rows of one field of a hub data set, each a document. Nothing is asked of the network yet."""
    notes: list[str] = []

    def stretches(_temporary: Path) -> Iterator[Stretch]:
        # The library's own cache is used, unlike for files: a person prefetches there for machines without network.
        yield from _rows(spec, base, notes)

    return Source(spec.name, stretches, None, {"kind": "hub", **spec.model_dump(mode="json")}, notes)


def local_folder(spec: HubData, base: Path) -> list[str] | None:
    """Hashes of the files when the name is a folder on this machine, which `datasets` also accepts; else None."""
    folder = base / spec.name
    if not folder.is_dir():
        return None
    return [file_sha256(p) for p in sorted(folder.rglob("*")) if p.is_file()]


def _rows(spec: HubData, base: Path, notes: list[str]) -> Iterator[Stretch]:
    local = (base / spec.name).is_dir()
    where = f"the data set {spec.name!r}" + (f" ({spec.config})" if spec.config else "")
    if not local:
        _ask_hub(spec, where)
    import pyarrow

    try:
        with quiet_datasets() as datasets:
            data = datasets.load_dataset(
                str(base / spec.name) if local else spec.name,
                spec.config,
                split=spec.split,
                revision=None if local else spec.revision,
                streaming=spec.streaming,
            )
            yield from rows_of_text(data, spec.field, where, notes)
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


def _ask_hub(spec: HubData, where: str) -> None:
    """Find out in bounded time whether the hub can be reached and knows the data set.

    Raises:
        DataError: no network, no such data set, no such revision, or no permission.
    """
    import huggingface_hub
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        # A copy in the cache will do; `datasets` looks there, and says at once when there is none.
        return
    try:
        huggingface_hub.HfApi().dataset_info(spec.name, revision=spec.revision, timeout=TIMEOUT)
    except errors.GatedRepoError as error:
        raise DataError(
            f"{where} is gated; accept its terms on its page and log in with `hf auth login`, or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DataError(f"{where} has no revision {spec.revision!r}; mend or drop data.revision") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise DataError(
            f"{where} is not on the hub, or is private; mend data.name (it looks like `owner/name`: search at "
            "https://huggingface.co/datasets), or log in with `hf auth login`"
        ) from error
    except Exception as error:
        # The HTTP library's own errors (its package name changed between hub releases), and timeouts.
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
