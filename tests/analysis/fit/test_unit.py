"""Losses in bits per byte: a constant factor on every loss, and no other number."""

import json
import math
from functools import cache
from pathlib import Path

import pytest

from analysis.audit.recommend import fit_evidence, recommend_one, shapes_of_sizes
from analysis.fit.document import Fit, fit
from analysis.fit.recommendation import NamedFit, recommended
from analysis.fit.words import answers, law_sentence, lowest_loss_sentence, noise_sentence
from analysis.law.answer_words import compute_sentence
from analysis.report.tables import best_table, compute_table, unusual_table
from analysis.runs.bytes import NoBytesError
from analysis.runs.table import RunTable, read_runs
from analysis.units import LossUnit
from core.errors import InputError
from tests.analysis.fit.test_document import simulated
from tests.isoflop import isoflop_table

BYTES = 3.7
GEMSTONES = Path(__file__).parents[3] / "analysis" / "audit" / "tables" / "gemstones.jsonl"
#: Keys of the fit file whose numbers are losses; `sd` and `misfit` are of `noise` and `curves`.
LOSSES = {"gap_ends", "loss", "losses", "excess", "above", "sd", "smooth_misfit", "misfit", "rms_residual"}
LOSSES |= {"c_m", "c_l", "k"}


def unusual():
    frame = simulated()
    frame.loc[7, "loss"] += 0.3
    return frame


def gemstones():
    named = {"loss": "final_loss", "params": "params_active_precise"}
    return read_runs(GEMSTONES, named).frame


TABLES = {"simulated": simulated, "unusual": unusual, "isoflop": isoflop_table, "gemstones": gemstones}


@cache
def fits_of(name):
    """The fits of a table in nats per token and in bits per byte."""
    table = RunTable.from_frame(TABLES[name]().assign(bytes_per_token=BYTES))
    return fit(table), fit(table, unit="bpb")


@pytest.fixture(params=TABLES)
def both(request):
    return fits_of(request.param)


def numbers(value, path=()):
    """The numbers and texts of a document, by their places."""
    if isinstance(value, dict):
        return [item for key, one in value.items() for item in numbers(one, (*path, key))]
    if isinstance(value, list):
        return [item for index, one in enumerate(value) for item in numbers(one, (*path, index))]
    return [(path, value)]


def is_loss(path):
    keys = [key for key in path if isinstance(key, str)]
    if "draws" in keys:
        form = path[path.index("laws") + 1]
        return path[-1] == 2 or (path[-1] == 0 and form == 0)
    return keys[-1] in LOSSES


def test_the_fit_file_has_every_loss_in_the_unit_and_all_else_unchanged(both):
    nats, bits = (found.to_json() for found in both)
    assert (nats.pop("unit"), bits.pop("unit")) == ("nats per token", "bits per byte")
    assert nats["bytes_per_token"] == bits["bytes_per_token"] == BYTES
    assert both[0].gap_laws.laws[0].form == "additive"
    factor, scaled = 1 / math.log(2) / BYTES, 0
    for (path, one), (same, other) in zip(numbers(nats), numbers(bits), strict=True):
        assert path == same
        if is_loss(path) and one is not None:
            assert other == pytest.approx(factor * one, rel=1e-12, abs=1e-300), path
            scaled += 1
        elif path[0] != "warnings":
            assert one == other, path
    assert scaled > 50


def test_crossings_intervals_and_recommended_shapes_are_those_in_nats(both, tmp_path):
    nats, bits = both
    (tmp_path / "fit.json").write_text(json.dumps(bits.to_json()))
    again = Fit.from_json(json.loads((tmp_path / "fit.json").read_text()))
    assert again.loss_unit == bits.loss_unit != nats.loss_unit
    assert (again.remarks, again.warnings) == (bits.remarks, bits.warnings)
    assert again.answer_without == bits.answer_without == nats.answer_without
    for found in (bits, again):
        for one, other in zip(nats.crossings, found.crossings, strict=True):
            assert (one.status, one.params, one.params_interval) == (
                other.status,
                other.params,
                other.params_interval,
            )
        assert found.law == nats.law
        for one, other in zip(nats.reading.ranges, found.reading.ranges, strict=True):
            assert one.depths == other.depths
            assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-9)
    if nats.sizes is None or not nats.crossings:
        return
    low, high = nats.sizes
    within = 0.004
    for params in (low, math.sqrt(low * high), high, 3 * high, 8 * high):
        for one, other in ((None, None), (within, within * bits.loss_unit.per_nat), ("0.3%", "0.3%")):
            shape = recommended(nats, params, one)
            for found in (recommended(bits, params, other), recommended(again, params, other)):
                assert (shape.depth, shape.width, shape.source) == (found.depth, found.width, found.source)
                assert shape.depth_interval == found.depth_interval


def test_sentences_and_tables_name_the_unit_of_the_fit(both):
    nats, bits = both
    for found, named, other in ((nats, "nats", "bits per byte"), (bits, "bits per byte", "nats")):
        tables = [make(found) for make in (best_table, compute_table, unusual_table)]
        text = "\n".join([*answers(found), noise_sentence(found), law_sentence(found), *found.warnings])
        text += "\n".join(f"{table.columns} {table.note}" for table in tables if table)
        assert named in text
        assert other not in text
    for found in both:
        lowest = float(found.study.entered["loss"].min())
        said = lowest_loss_sentence(found)
        assert f"{lowest:.4f} nats per token" in said
        assert f"{lowest / math.log(2) / BYTES:.4f} bits per byte" in said


def test_recommended_losses_are_in_the_unit_and_an_audit_is_in_nats(both):
    nats, bits = both
    if len(nats.crossings) < 3 or nats.sizes is None:
        return
    largest, per_nat = nats.sizes[1], bits.loss_unit.per_nat
    (one,), (other,) = (shapes_of_sizes(NamedFit("it", found), None, [largest])[1] for found in both)
    assert (one.unit, other.unit) == ("nats per token", "bits per byte")
    assert other.near_optimal.within == pytest.approx(per_nat * 0.005)
    assert other.near_optimal.depths == one.near_optimal.depths
    if one.measured:
        assert other.measured.loss == pytest.approx(per_nat * one.measured.loss)
    first, second = (fit_evidence(NamedFit("it", found), 0.005) for found in both)
    assert first.best(largest) == second.best(largest)
    assert first.losses(largest, 4, 0.005) == second.losses(largest, 4, 0.005)


def test_the_losses_at_a_compute_are_in_the_unit():
    one, other = (recommend_one(NamedFit("it", found), None, None, "1e18")[1] for found in fits_of("isoflop"))
    per_nat = LossUnit.of("bits per byte", BYTES).per_nat
    assert other.loss == pytest.approx(per_nat * one.loss)
    assert [item.excess for item in other.others] == pytest.approx(
        [per_nat * item.excess for item in one.others]
    )
    assert (other.depth, other.params, other.tokens, compute_sentence(other)) == (
        one.depth,
        one.params,
        one.tokens,
        compute_sentence(one),
    )


def test_bytes_follow_from_bits_per_byte_up_to_their_rounding():
    frame = simulated()
    frame = frame.assign(bits_per_byte=(frame["loss"] / math.log(2) / BYTES).round(4))
    found = fit(RunTable.from_frame(frame), unit="bpb")
    assert found.bytes_per_token == pytest.approx(BYTES, rel=1e-4)
    per_byte = frame.drop(columns="loss")
    whole = fit(RunTable.from_frame(per_byte), unit="bpb")
    assert whole.loss_unit.per_nat == pytest.approx(1 / math.log(2))
    assert whole.best[0].loss * whole.loss_unit.per_nat == pytest.approx(
        found.best[0].loss * found.loss_unit.per_nat, rel=1e-3
    )


def test_rows_without_bytes_or_with_different_ones_are_refused_with_the_fix():
    frame = simulated()
    with pytest.raises(NoBytesError, match="'bytes_per_token': 'HEADING'"):
        fit(RunTable.from_frame(frame), unit="bpb")
    some = frame.assign(bytes_per_token=[math.nan, *[BYTES] * (len(frame) - 1)])
    with pytest.raises(NoBytesError, match="the rows 1, "):
        fit(RunTable.from_frame(some), unit="bpb")
    unread = frame.assign(bits_per_byte="none")
    with pytest.raises(NoBytesError, match="bits_per_byte must be above 0"):
        fit(RunTable.from_frame(unread), unit="bpb")
    both = frame.assign(bytes_per_token=BYTES, bits_per_byte=frame["loss"] / math.log(2) / BYTES)
    both.loc[2, "bits_per_byte"] *= 1.1
    with pytest.raises(NoBytesError, match=f"contradict each other: in row 3 .*is {BYTES}"):
        fit(RunTable.from_frame(both), unit="bpb")
    other = frame.assign(bytes_per_token=[BYTES] * (len(frame) - 1) + [4.2])
    with pytest.raises(NoBytesError, match=rf"4\.200 in row {len(frame)}\. .*with where="):
        fit(RunTable.from_frame(other), unit="bpb")
    for one in (some, other):
        assert fit(RunTable.from_frame(one)).bytes_per_token is None
    with pytest.raises(InputError, match="nats, bpb"):
        fit(RunTable.from_frame(frame), unit="bits")


def test_a_file_in_bits_per_byte_without_the_bytes_is_no_fit():
    document = fit(RunTable.from_frame(simulated().assign(bytes_per_token=BYTES)), unit="bpb").to_json()
    del document["bytes_per_token"]
    with pytest.raises(InputError, match="bytes per token"):
        Fit.from_json(document)
