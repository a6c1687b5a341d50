"""The answer of a study in sentences."""

from analysis.fit.document import Fit
from analysis.fit.sentences import headlines
from analysis.report.extras.accuracy import score_sentences
from analysis.report.extras.shifts import shift_sentence


def answers(fit: Fit) -> list[str]:
    """The headlines, the scores of a task, the shifts at other learning rates, and what to do next."""
    steps = [item.sentence for item in (fit.next_depth, fit.learning_rate) if item]
    return [*headlines(fit), *score_sentences(fit), *filter(None, [shift_sentence(fit.shifts), *steps])]
