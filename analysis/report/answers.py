"""The answer of a study in sentences."""

from analysis.fit.document import Fit
from analysis.fit.sentences import headlines
from analysis.report.extras.accuracy import score_sentences
from analysis.report.extras.shifts import shift_sentence


def answers(fit: Fit) -> list[str]:
    """Scores of a task, the headlines, the shifts at other learning rates, and what to do next."""
    steps = [item.sentence for item in (fit.next_depth, fit.learning_rate) if item]
    return [*score_sentences(fit), *headlines(fit), *filter(None, [shift_sentence(fit.shifts), *steps])]
