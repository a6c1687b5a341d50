import json
import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import pytest
from pydantic import Field

from core.errors import InputError
from core.files import from_json, to_json, write_json, write_text


def test_strict_json_has_no_nan_and_plain_types():
    numbers = [np.inf, np.float64(1.5), np.int64(3), np.bool_(True)]
    value = {"a": float("nan"), 2: numbers, "c": np.array([1.0, -np.inf])}
    assert to_json(value) == {"a": None, "2": [None, 1.5, 3, True], "c": [1.0, None]}
    assert type(to_json(np.int64(3))) is int
    with pytest.raises(TypeError, match="has no JSON form"):
        to_json({"a": object()})


@dataclass(frozen=True)
class Inner:
    interval: tuple[float | None, float]


@dataclass(frozen=True)
class Renamed:
    is_set: Annotated[bool, Field(alias="set")] = field(default=False, metadata={"json": "set"})


def test_a_field_may_have_another_key():
    assert to_json(Renamed(True)) == {"set": True}
    assert from_json(Renamed, {"set": True}, "thing") == Renamed(True)


@dataclass(frozen=True)
class Outer:
    JSON_PROPERTIES: ClassVar = ("twice",)

    count: int
    inner: tuple[Inner, ...] = ()

    @property
    def twice(self):
        return 2 * self.count


def test_a_dataclass_is_written_and_read():
    value = Outer(2, (Inner((None, 1.5)), Inner((0.0, 1.0))))
    document = to_json(value)
    inner = [{"interval": [None, 1.5]}, {"interval": [0.0, 1.0]}]
    assert document == {"count": 2, "inner": inner, "twice": 4}
    assert from_json(Outer, {**document, "unknown": "x"}, "thing") == value


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"count": "2"}, "count"),
        ({"count": 1.5}, "count"),
        ({"count": True}, "count"),
        ({}, "count"),
        ({"count": 1, "inner": [{"interval": [None, math.nan]}]}, "inner.0.interval.1"),
        ({"count": 1, "inner": [{"interval": [None, 10**400]}]}, "inner.0.interval.1"),
        (3, "the document"),
    ],
)
def test_a_wrong_document_is_an_input_error_with_the_location(document, where):
    with pytest.raises(InputError, match=f"This is not a thing: {where}: "):
        from_json(Outer, document, "thing")


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = write_json(tmp_path / "deep" / "fit.json", {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}

    def broken(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", broken)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "half")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [item.name for item in path.parent.iterdir()] == ["fit.json"]
