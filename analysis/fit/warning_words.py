"""What a fit warns of: no estimate of the noise, unequal seeds, misfit, leads that shrink again, lost shapes."""

from analysis.fit.study import Study
from analysis.units import LossUnit


def study_warnings(study: Study, unit: LossUnit) -> list[str]:
    """What may bias the answer of a study, in sentences; losses are stated in `unit`."""
    rows, curves, crossings = study.rows, study.curves, study.crossings.items
    warnings = []
    source = curves.noise.source
    # The curves of losses that are not comparable state nothing.
    comparable = study.comparison.tokens.comparable
    if source == "residuals" and comparable:
        warnings.append(
            "One seed: noise is estimated from residuals. An error common to all sizes of one depth leaves none, so no "
            "interval includes it; more seeds show it."
        )
    elif source == "none" and curves.noise.seeds < 2:
        warnings.append(
            "One seed and too few sizes: there is no noise estimate, so no interval, no test and no law."
        )
    elif source == "none":
        warnings.append(
            "All seeds of a shape have the same loss, so there is no noise estimate. Check the seed column."
        )
    per_shape = rows.groupby(["depth", "params"])["seed"].nunique()
    if per_shape.nunique() > 1:
        warnings.append(f"Shapes have between {per_shape.min()} and {per_shape.max()} seeds.")
    if comparable and curves.misfit_p is not None and curves.misfit_p < 0.01:
        warnings.append(
            f"The losses deviate from power laws by {unit.per_nat * curves.misfit_rms:.2g} {unit.short} beyond the "
            "seed noise "
            f"(p = {curves.misfit_p:.1g}); the intervals include this misfit."
        )
    turned = [f"{item.shallow} → {item.deep}" for item in crossings if item.non_monotone]
    if turned:
        warnings.append(
            f"At the largest sizes the lead of the deeper model shrinks again, or its loss rises ({', '.join(turned)} "
            "layers). Deep models may be trained too little there: do not project from these crossings."
        )
    lost = sorted({item for crossing in crossings for item in crossing.diverged})
    if lost:
        shapes = ", ".join(f"{depth} layers at N = {params:,.0f}" for depth, params, _ in lost[:5])
        warnings.append(
            f"Every row of {shapes}{' and others' if len(lost) > 5 else ''} diverged; these shapes count as worse."
        )
    return warnings
