"""The answer of a study in sentences."""

from analysis.fit.document import Fit
from analysis.fit.sentences import headlines
from analysis.report.extras.accuracy import score_sentences
from analysis.report.extras.shifts import shift_sentence


def answers(fit: Fit) -> list[str]:
    """Scores of a task, the headlines, the shifts at other learning rates, and whether the rate was checked."""
    checked = fit.learning_rate.sentence if fit.learning_rate else ""
    return [*score_sentences(fit), *headlines(fit), *filter(None, [shift_sentence(fit.shifts), checked])]
