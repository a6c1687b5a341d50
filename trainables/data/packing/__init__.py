"""From text or rows to the files of a token store."""

from collections.abc import Callable

#: Called with the stage of the packing, and the share of it that is done if that is known.
OnProgress = Callable[[str, float | None], None]
