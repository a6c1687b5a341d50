"""Text or generated sequences, packed once into a store of tokens, and batches as a pure function of (seed, step)."""

import importlib
import pkgutil
from typing import Annotated

from pydantic import PlainValidator, SerializeAsAny

from trainables.data import kinds
from trainables.data.kind import DataKind, data_key, validate_kind

__all__ = ["DataSpec", "data_key"]

for _module in pkgutil.iter_modules(kinds.__path__, f"{kinds.__name__}."):
    importlib.import_module(_module.name)

#: The section `data` of a spec: any kind of data, validated by the class that is registered for its `kind` at that
#: moment, so that kinds may be registered at any time.
DataSpec = Annotated[SerializeAsAny[DataKind], PlainValidator(validate_kind)]
