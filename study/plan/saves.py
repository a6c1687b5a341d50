"""How long a checkpoint takes, and so the end of a study whose cells save first."""

from collections.abc import Iterable

#: Bytes of a checkpoint per parameter: the weights and two moments in fp32, and the weights in bf16.
STATE_BYTES = 14
#: Bytes per second of one checkpoint, written to a network disk and then copied to an object store in one stream: an
#: assumption, by which 18 GB take four minutes.
UPLOAD_BYTES = 75e6
#: Least seconds that running cells have to save after a first signal; `cluster/slurm.sbatch` gives 120 s for all.
LEAST_SAVE_SECONDS = 90.0
#: Saves that fit into that time: a cell may have to end one whose copy has just begun, and then writes another one
#: while other cells of its machine do so too.
SAVES = 3
#: Seconds for what follows: sending rows to the trackers (60) and copying the results.
RESULTS_SECONDS = 120.0


def save_seconds(parameters: int) -> float:
    """Return the estimated seconds of a checkpoint until it is valid in an object store, before any was timed."""
    return parameters * STATE_BYTES / UPLOAD_BYTES


def seconds_to_save(saves: Iterable[float]) -> float:
    """Return the seconds that cells have to save after a signal, by those that a save of each takes."""
    return max(LEAST_SAVE_SECONDS, SAVES * max(saves, default=0.0))


def seconds_to_stop(saves: Iterable[float]) -> float:
    """Return the seconds from a signal to the end of a study, at most, by those that a save of each cell takes."""
    return seconds_to_save(saves) + RESULTS_SECONDS
