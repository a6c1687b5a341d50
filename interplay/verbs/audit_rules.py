"""`interplay audit --rules`: published rules of shape on measured tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.audit.rules import RULES, Judgement, Rule, judge_rules
from analysis.law.near_optimal import WITHIN
from core.files import to_json
from core.numbers import span
from interplay.result import VerbResult
from interplay.terminal import text_table


@dataclass(frozen=True, repr=False)
class JudgedRules(VerbResult):
    """Published rules of shape, judged on the tables that come with Interplay."""

    rules: Sequence[Rule]
    judgements: Sequence[Judgement]

    def to_json(self) -> list[dict[str, Any]]:
        """Return one record per rule, with its judgement by each table."""
        return [
            {
                **{name: getattr(rule, name) for name in ("name", "statement", "source", "domain")},
                "judgements": [to_json(item) for item in self.judgements if item.rule == rule.name],
            }
            for rule in self.rules
        ]

    def __rich__(self) -> RenderableType:
        return rules_view(self.judgements)


def audit_rules() -> JudgedRules:
    """Judge published rules of shape, such as a width of 64 per layer, on measured tables.

        interplay.audit_rules().to_json()

    Takes a few seconds; how they are judged is in `analysis.audit.rules`.
    """
    return JudgedRules(RULES, judge_rules())


def rules_view(judgements: Sequence[Judgement]) -> RenderableType:
    """Return the table of the judgements for a terminal of 80 columns, and how to read it."""
    rows = []
    for item in judgements:
        if item.lost is None or item.depths is None or item.interval is None:
            continue
        low, high = item.interval
        verdict = str(item.verdict) if item.in_domain else f"({item.verdict})"
        rows.append(
            (
                item.rule,
                item.table,
                f"{item.sizes} of {item.sizes + item.outside}",
                span((item.depths[0], item.depths[1])),
                f"{item.lost:.4f}",
                f"{low:.4f}–{high:.4f}",
                verdict,
            )
        )
    outside = [f"{item.rule} on {item.table}" for item in judgements if item.lost is None]
    names = ("rule", "table", "sizes", "depths", "lost", "95 %", "verdict")
    legend = (
        "Lost: nats per token above the best depth, on average over the sizes of the table at which the depth of the "
        f"rule was measured or lies between measured ones. Holds: less than {WITHIN:g} by the interval; loses: more. "
        "In brackets: the rule was stated for models of other sizes."
    )
    parts = [text_table("", names, rows, left=("rule", "table", "verdict")), Text(legend, style="dim")]
    if outside:
        parts.append(Text(f"Not judged, because no depth was near: {'; '.join(outside)}.", style="dim"))
    return Group(*parts)
