"""The libraries of the extra `cluster`, which a laptop that only trains at home does without."""

from importlib.util import find_spec

from study.errors import SpecError


def need(purpose: str, *modules: str) -> None:
    """Refuse to go on without libraries.

    Args:
        purpose: what is to be done, as the start of a sentence.
        modules: their import names.

    Raises:
        SpecError: names those that are missing and how to install them.
    """
    missing = [name for name in modules if not _is_there(name)]
    if missing:
        raise SpecError(
            f"{purpose} needs {' and '.join(missing)}, of the extra `cluster`; install it: "
            "pip install 'interplay[cluster]'."
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        # What `sys.modules` holds as None cannot be imported, whatever lies on the disk.
        return False
