"""The answer of a study in sentences."""

from analysis.fit.document import Fit
from analysis.fit.sentences import headlines
from analysis.report.extras.accuracy import score_sentences
from analysis.report.extras.shifts import shift_sentence


def answers(fit: Fit) -> list[str]:
    """What was found, and what to do next."""
    return [*findings(fit), *next_steps(fit)]


def findings(fit: Fit) -> list[str]:
    """Scores of a task, the headlines, and the shifts at other learning rates."""
    check = fit.learning_rate
    checked = check.sentence if check and check.checked else ""
    return [*score_sentences(fit), *headlines(fit), *filter(None, [shift_sentence(fit.shifts), checked])]


def next_steps(fit: Fit) -> list[str]:
    """A deeper model if the deepest one is the best, and the check of the learning rate, each with its cost."""
    check = fit.learning_rate
    steps = [fit.next_depth, check if check and not check.checked else None]
    return [step.sentence for step in steps if step]
