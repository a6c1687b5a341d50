import json

import numpy as np
import pytest

from analysis.files import strict, write_json, write_text


def test_strict_json_has_no_nan_and_plain_types():
    value = {
        "a": float("nan"),
        2: [np.inf, np.float64(1.5), np.int64(3), np.bool_(True)],
        "c": np.array([1.0, -np.inf]),
    }
    assert strict(value) == {"a": None, "2": [None, 1.5, 3, True], "c": [1.0, None]}
    assert type(strict(np.int64(3))) is int


def test_what_has_no_json_form_is_an_error():
    with pytest.raises(TypeError, match="has no JSON form"):
        strict({"a": object()})


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
