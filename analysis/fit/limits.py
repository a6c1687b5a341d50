"""The best depth of a study at a limit of latency, training time or memory, from the measured costs of its shapes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from analysis.fit.study import Study
from analysis.law.at_limit import AtLimit, CostKind, Limit
from analysis.law.cost_limit import ShapeCost, at_limit
from analysis.runs.costs import ShapeCosts
from core.command_line import call, option
from core.errors import InputError
from core.numbers import listed

#: Kind of a limit -> the measure of `resources.measure` that has its cost.
MEASURES = {CostKind.LATENCY: "decode", CostKind.TRAIN_TIME: "train", CostKind.CACHE: "decode"}


def recommend_at_limit(
    study: Study, costs: Sequence[ShapeCosts], limit: Limit, device: str | None = None
) -> AtLimit:
    """Return what is known at a limit of cost, each depth at the size that just meets it.

    Args:
        study: the losses compared.
        costs: of its shapes, each measured alone.
        limit: of one kind of cost. Training takes the tokens at which the losses are compared.
        device: name of the device whose costs count; may be left out if there is one.

    Raises:
        InputError: losses of depths are not compared at one N, no cost of this kind was measured on this device, the
            costs are of several devices and none is named, or the tokens of a training are not known.
    """
    if not study.comparison.tokens.comparable:
        raise InputError(
            "Losses of different depths are not comparable at one size here, so a limit of cost has no best depth. "
            "Train the depths of each size on equal tokens."
        )
    chosen = _of_one_device(costs, device)
    priced = list(_priced(study, chosen, limit))
    if not priced:
        raise InputError(_nothing_measured(chosen, limit))
    answer = at_limit(
        study.curves, study.crossings.quantile, priced, limit, layer_weights=study.layer_weights
    )
    # The bytes of the cache are counted, not timed.
    is_timed = limit.kind is not CostKind.CACHE
    unsteady = {row.depth for row in chosen if is_timed and MEASURES[limit.kind] in row.unsteady}
    return replace(answer, width_step=study.reading.width_step, unsteady=tuple(sorted(unsteady)))


def _of_one_device(costs: Sequence[ShapeCosts], device: str | None) -> list[ShapeCosts]:
    """The costs on one device and machine."""
    rows = [row for row in costs if device in (None, row.device, row.machine)]
    places = sorted({row.place for row in rows})
    names = listed(
        [f"{name} ({machine})" for name, machine in sorted({row.place for row in costs})] or ["none"]
    )
    if not rows:
        given = "" if device is None else f" on {option('device', device)}"
        raise InputError(f"No costs were measured{given}; measured are those on {names}.")
    if len(places) > 1:
        raise InputError(
            f"The costs are of several devices, {names}; name one, such as {option('device', places[0][1])}."
        )
    return rows


def _priced(study: Study, costs: Iterable[ShapeCosts], limit: Limit) -> Iterable[ShapeCost]:
    """The limited cost of each shape for which it was measured."""
    sizes = {
        (int(depth), round(width)): float(params)
        for depth, width, params in study.rows[["depth", "width", "params"]].itertuples(index=False)
    }
    for row in costs:
        params = sizes.get((row.depth, row.width), row.size(study.layer_weights))
        value = _cost(study, row, params, limit)
        if value is not None:
            yield ShapeCost(row.depth, params, value)


def _cost(study: Study, row: ShapeCosts, params: float, limit: Limit) -> float | None:
    """The limited cost of one row in seconds or bytes; None if it was not measured, or is of another batch."""
    match limit.kind:
        case CostKind.LATENCY:
            is_asked = row.batch == limit.batch and row.decode_ms is not None
            return row.decode_ms / 1e3 if is_asked and row.decode_ms else None
        case CostKind.TRAIN_TIME:
            if row.train_tokens_per_second is None:
                return None
            return _tokens(study, params) / row.train_tokens_per_second
        case CostKind.CACHE:
            return None if row.kv_bytes_per_token is None else float(row.kv_bytes_per_token)


def _tokens(study: Study, params: float) -> float:
    """The training tokens of a shape of N = `params` at which the losses are compared."""
    tokens = study.comparison.tokens
    if tokens.ratio is not None:
        return tokens.ratio * params
    if tokens.compared is None:
        raise InputError(
            f"The shapes of this table have no common number of training tokens, so {option('train-time')} has no "
            "answer."
        )
    return tokens.compared


def _nothing_measured(costs: Sequence[ShapeCosts], limit: Limit) -> str:
    """Why no shape has the limited cost."""
    batches = sorted({row.batch for row in costs if row.decode_ms is not None})
    if limit.kind is CostKind.LATENCY and batches:
        return (
            f"No latency was measured for {option('batch', limit.batch)}; measured are batches of "
            f"{listed([str(batch) for batch in batches])}."
        )
    return f"The costs have no measure `{MEASURES[limit.kind]}`; measure it with `{call('cost', 'SPEC')}`."
