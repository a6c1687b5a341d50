"""Sentences on what was measured inside the nets."""

from analysis.numbers import digits
from analysis.report.extras.diagnostics import DiagnosticsData

#: Paths of the distance from rank one, as sentences call them.
_PATHS = {
    "rank_residual_attention": "by attention alone",
    "rank_residual_noskip": "without skip connections",
    "rank_residual_noffn": "without feed-forward networks",
    "rank_residual": "as the models are",
}


def rank_sentence(data: DiagnosticsData | None) -> str:
    """What becomes of the tokens' distance from rank one in the deepest models; empty where it was not measured."""
    if data is None or "rank_residual" not in data.names:
        return ""
    depth = int(data.rows.loc[data.rows["name"] == "rank_residual", "depth"].max())
    found = data.rows[data.rows["depth"] == depth].set_index(["name", "when", "layer"])["value"]
    parts = []
    for when, words in (("start", "before training"), ("end", "at the end of training")):
        last = {name: (name, when, depth) for name in _PATHS}
        if all(key in found.index for key in last.values()):
            values = ", ".join(f"{_small(found[last[name]])} {words}" for name, words in _PATHS.items())
            parts.append(f"{words} {values}")
    if not parts:
        return ""
    which = "the only layer" if depth == 1 else f"the last of {depth} layers"
    return f"Distance of the tokens from rank one behind {which}: {'; '.join(parts)}."


def _small(value: float) -> str:
    return f"{value:.0e}" if 0 < value < 1e-4 else digits(value)
