"""Which cell to run next: samplers of Optuna behind one interface, asked and told from the run table alone."""

from study.search.source import Outcome, Source

__all__ = ["Outcome", "Source"]
