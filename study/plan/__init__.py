"""Cells and their cost. Nothing here trains or downloads."""

from study.plan.cells import PlannedCell
from study.plan.plan import Plan, make_plan

__all__ = ["Plan", "PlannedCell", "make_plan"]
