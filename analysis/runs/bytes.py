"""Bytes of text per token of the rows of a run table, which make bits per byte of nats per token."""

import math

import numpy as np
import pandas as pd

from analysis.runs.columns import BITS_PER_BYTE, BYTES_PER_TOKEN, numeric
from core.command_line import option
from core.errors import InputError
from core.numbers import digits, first_few

#: Relative difference of bytes per token that the rounding of losses explains.
ROUNDING = 0.002
#: The same of the two columns of a row, where that in bits per byte may have two digits.
CONTRADICTION = 0.05


class NoBytesError(InputError):
    """Rows whose losses cannot be stated in bits per byte."""


def bytes_of_rows(rows: pd.DataFrame) -> pd.Series:
    """Bytes per token of each row, as given or as loss / ln 2 over bits per byte; NaN where neither is known."""
    per_token = pd.Series(np.nan, rows.index)
    if BITS_PER_BYTE in rows:
        per_token = rows["loss"] / math.log(2) / numeric(rows[BITS_PER_BYTE])
    if BYTES_PER_TOKEN in rows:
        per_token = numeric(rows[BYTES_PER_TOKEN]).astype(float).fillna(per_token)
    return per_token.where((per_token > 0) & np.isfinite(per_token))


def common_bytes(rows: pd.DataFrame) -> float | None:
    """Bytes per token of all rows; None if a row has none, or they differ by more than `ROUNDING`."""
    per_token = bytes_of_rows(rows)
    return None if per_token.isna().any() or len(_others(per_token)) else float(per_token.median())


def needed_bytes(rows: pd.DataFrame, source: str) -> float:
    """Bytes per token of all rows.

    Raises:
        NoBytesError: a row has none, they differ, or a row's two columns contradict each other.
    """
    per_token = bytes_of_rows(rows)
    if BITS_PER_BYTE in rows and BYTES_PER_TOKEN in rows:
        other = bytes_of_rows(rows.drop(columns=BYTES_PER_TOKEN))
        for row in per_token.index[abs(other / per_token - 1) > CONTRADICTION][:1]:
            raise NoBytesError(
                f"The columns {BITS_PER_BYTE} and {BYTES_PER_TOKEN} of {source} contradict each other: in row {row} "
                f"the loss in bits per byte is of {digits(other[row], 4)} bytes per token, and {BYTES_PER_TOKEN} is "
                f"{digits(per_token[row], 4)}. Correct one of them, or leave out {option('unit', 'bpb')}."
            )
    if missing := [str(row) for row in per_token.index[per_token.isna()]]:
        which = (
            f"none are known of the rows {first_few(missing)}"
            if len(missing) < len(per_token)
            else "it has none"
        )
        if given := [name for name in (BITS_PER_BYTE, BYTES_PER_TOKEN) if name in rows]:
            which += f", where {' and '.join(given)} must be above 0"
        raise NoBytesError(
            f"{option('unit', 'bpb')} needs the bytes per token of {source}, and {which}. Name the column of the loss "
            f"in bits per byte with {option('column', 'bits_per_byte=HEADING')}, or that of the bytes of text per "
            f"token with {option('column', 'bytes_per_token=HEADING')}; or leave out {option('unit', 'bpb')}."
        )
    middle = float(per_token.median())
    if len(others := _others(per_token)):
        named = [f"{digits(value, 4)} in row {row}" for row, value in others.items()]
        raise NoBytesError(
            f"The rows of {source} have no common number of bytes per token, which {option('unit', 'bpb')} needs: "
            f"{digits(middle, 4)}, but {first_few(named)}. Compare the rows of one data set with "
            f"{option('where', 'HEADING=VALUE')}; if the losses in bits per byte are rounded, add a column "
            f"bytes_per_token; or leave out {option('unit', 'bpb')}."
        )
    return middle


def _others(per_token: pd.Series) -> pd.Series:
    """The numbers that differ from the middle one."""
    return per_token[abs(per_token / per_token.median() - 1) > ROUNDING]
