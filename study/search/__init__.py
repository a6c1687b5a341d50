"""The choice of the next cell to train: the samplers behind one interface, resumed from the run table alone."""

from study.plan.cells import Outcome
from study.search.make_search import make_search
from study.search.source import Search, SearchState, Source

__all__ = ["Outcome", "Search", "SearchState", "Source", "make_search"]
