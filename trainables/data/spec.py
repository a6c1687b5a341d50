"""The type of the section `data` of a spec: any registered kind of data."""

import importlib
import pkgutil
from typing import Annotated

from pydantic import PlainValidator, SerializeAsAny

from trainables.data import kinds
from trainables.data.kind import DataKind, validate_kind

for _module in pkgutil.iter_modules(kinds.__path__, f"{kinds.__name__}."):
    importlib.import_module(_module.name)

#: Validated by the class that is registered for its `kind` at that moment, so kinds may be registered at any time.
DataSpec = Annotated[SerializeAsAny[DataKind], PlainValidator(validate_kind)]
