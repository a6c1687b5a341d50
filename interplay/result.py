"""What a verb returns: the same object for a script, for a notebook and for the command, which prints it."""

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console, RenderableType

#: Columns of a result in a notebook.
COLUMNS = 120


class VerbResult(ABC):
    """A result with the document of `--json` and a view for a terminal, which a notebook shows as well."""

    @abstractmethod
    def to_json(self) -> Any:
        """Return the JSON document."""

    @abstractmethod
    def __rich__(self) -> RenderableType:
        """Return the view for a terminal."""

    def __repr__(self) -> str:
        return self._printed().export_text().rstrip()

    def _repr_html_(self) -> str:
        return self._printed().export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    def _printed(self) -> Console:
        console = Console(file=io.StringIO(), record=True, width=COLUMNS, highlight=False)
        console.print(self, crop=False)
        return console


class Wrapped(VerbResult):
    """A result of one object of `analysis`: it has every attribute of this object, and its `repr`."""

    #: Name of the field with the object.
    WRAPPED: ClassVar[str]

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling look for methods before there is an object.
        if name.startswith("__") or name == self.WRAPPED:
            raise AttributeError(name)
        return getattr(getattr(self, self.WRAPPED), name)

    def __repr__(self) -> str:
        return repr(getattr(self, self.WRAPPED))


@dataclass(frozen=True, repr=False)
class View(VerbResult):
    """A document and its view."""

    document: Any
    view: RenderableType

    def to_json(self) -> Any:
        """Return the document."""
        return self.document

    def __rich__(self) -> RenderableType:
        """Return the view."""
        return self.view
