"""Choose among the remarks of a run table or of a fit."""

from analysis.runs.remarks import About, Remark


def remarks_about(remarks: tuple[Remark, ...], about: About) -> list[Remark]:
    """The remarks about one thing."""
    return [remark for remark in remarks if remark.about is about]
