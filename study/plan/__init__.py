"""Cells and their cost. Nothing here trains or downloads."""

from study.plan.cells import Outcome, PlannedCell
from study.plan.plan import Plan, make_plan

__all__ = ["Outcome", "Plan", "PlannedCell", "make_plan"]
