import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from analysis.curves.noise import NoiseSummary
from analysis.law.decision import GapLaw
from analysis.units import LOSS, LossUnit, times


@dataclass(frozen=True)
class Inner:
    loss: float | None = field(metadata=LOSS)
    size: float


@dataclass(frozen=True)
class Outer:
    items: tuple[Inner, ...]
    curves: tuple[tuple[float | None, ...], ...] = field(metadata=LOSS)
    noise: NoiseSummary


def test_all_losses_of_a_document_are_multiplied_and_nothing_else():
    one = Outer(
        (Inner(2.0, 3.0), Inner(None, 4.0)), ((1.0, None),), NoiseSummary(sd=0.5, source="seeds", dof=3.0)
    )
    found = times(one, 10)
    assert found.items == (Inner(20.0, 3.0), Inner(None, 4.0))
    assert found.curves == ((10.0, None),)
    assert found.noise == NoiseSummary(sd=5.0, source="seeds", dof=3.0)
    assert times(one, 1) is one


def test_a_bit_per_byte_is_a_nat_over_ln_two_and_the_bytes():
    unit = LossUnit.of("bits per byte", 4.0)
    assert unit.per_nat == pytest.approx(1 / (4 * math.log(2)))
    assert LossUnit.of("nats per token", None).per_nat == 1
    with pytest.raises(ValueError, match="bytes per token"):
        LossUnit.of("bits per byte", None)


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("additive", (2.0, 0.4, 3.0, 0.5, 0.1)),
        ("power", (3.0, 9.0, 0.05, 0.1, 0.2)),
        ("saturating", (3.0, 9.0, 0.05, 0.1, 0.2)),
        ("crossings, root", (2.5, 0.3, 0.04)),
    ],
)
def test_the_gap_of_a_law_is_multiplied_with_its_draws(form, row):
    from analysis.law.decision import frame_of

    law = GapLaw(form, "ok", draws=(row,))
    frame = frame_of(np.log([1e5, 1e7]), (2, 4, 8))
    x, log_depth = np.log([[1e6, 1e7]]), np.log([[3.0, 7.0]])
    own, other = law.gap(x, log_depth, frame), law.times(10).gap(x, log_depth, frame)
    assert other == pytest.approx(10 * own, rel=1e-12)
    assert np.all(own != 0)
