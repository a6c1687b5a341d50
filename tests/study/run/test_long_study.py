"""Many cells in one study: what each leaves behind in memory, open files and on disk."""

import os
from pathlib import Path

import pytest

from tests.bench import long

pytestmark = pytest.mark.extended

CELLS = 96


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """The figures of the benchmark `long`, with fewer cells than it has."""
    return {figure.what.partition(": ")[2]: figure for figure in long.measure(tmp_path_factory.mktemp("long"), CELLS)}
