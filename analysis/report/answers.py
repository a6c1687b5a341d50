"""The answer of a study in sentences."""

from analysis.fit.document import Fit
from analysis.fit.sentences import headlines
from analysis.report.extras.accuracy import score_sentences
from analysis.report.extras.shifts import contrast_sentence, sensitivity_sentence


def answers(fit: Fit) -> list[str]:
    """Scores of a task, the headlines, and what other learning rates and parametrisations do to the crossings."""
    moves = sensitivity_sentence(fit.sensitivity, fit.level)
    return [
        *score_sentences(fit),
        *headlines(fit),
        *([moves] if moves else []),
        *(contrast_sentence(item) for item in fit.contrasts),
    ]
