import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from trainables.data import DataSpec
from trainables.data.kinds.files import FilesData
from trainables.data.kinds.hierarchy import HierarchyData
from trainables.data.kinds.mixture import MixtureData


def make(**fields):
    return TypeAdapter(DataSpec).validate_python(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "files", "path": "x", "tokenizer": "bpe"}, "needs `vocabulary`"),
        ({"kind": "files", "path": "x", "vocabulary": 1000}, "always has 257"),
        (
            {"kind": "files", "path": "x", "tokenizer": "bpe", "vocabulary": 100},
            "greater than or equal to 257",
        ),
        (
            {
                "kind": "mixture",
                "parts": [{"weight": 1, "data": {"kind": "python-source", "max_tokens": 5}}],
            },
            "part 0 sets `max_tokens` to 5",
        ),
    ],
)
def test_impossible_combinations_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        make(**fields)


def test_a_mixture_survives_being_written_out_with_all_defaults():
    mixture = make(
        kind="mixture",
        tokenizer="bpe",
        vocabulary=300,
        parts=[
            {"weight": 1, "data": {"kind": "python-source"}},
            {"weight": 2, "data": {"kind": "hub", "name": "owner/name"}},
        ],
    )
    assert MixtureData.model_validate_json(mixture.model_dump_json()) == mixture


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        (HierarchyData(), 9),
        (FilesData(path="nowhere"), 257),
        (FilesData(path="nowhere", tokenizer="bpe", vocabulary=1000), 1000),
    ],
)
def test_the_vocabulary_is_known_without_the_data(spec, size):
    assert spec.vocabulary_size == size


def test_a_spec_is_read_without_any_heavy_import():
    code = (
        "import sys, trainables.data\n"
        "from trainables.data import data_key\n"
        "print([m for m in ('numpy', 'torch', 'datasets', 'tokenizers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
