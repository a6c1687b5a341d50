"""The fixed study of the tests of mechanism, by its path."""

from pathlib import Path

SMALL = str(Path(__file__).with_suffix(".yaml"))
