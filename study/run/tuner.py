"""Runs cells by Ray Tune on warm actors, or gangs of new processes, and tries them again when a process is lost."""

# The life of a cell, in order:
#
# 1. `runner.run_study` plans the study (`make_plan`), reads its rows (`Ledger.rows`, `study_rows`) and resumes the
#    search from them (`make_search`).
# 2. Tune asks `CellSearcher.suggest` for a configuration. `CellQueue.suggest` gives a lost cell first, else the next
#    one of `Search.take`, once all of its ranks have devices; `trial_config` makes the configuration.
# 3. Tune reserves the devices (`resource_request`) and starts the trainable `run_trial` in an actor.
#    `StudyCallback.on_trial_start` reports it: `Recorder.started` writes it to the unfinished cells.
# 4. `run_trial` trains by `trainables.train`, in a gang if the cell has several ranks, from its checkpoint if it has
#    one. It sends reports, which `StudyCallback.on_trial_result` reads (`read_report`): `Recorder.progress` sends
#    parts of the curve to the trackers.
# 5. If the process is lost, `StudyCallback.on_trial_error` has `CellQueue.lose` decide whether the cell is tried
#    again, from step 2 (`Recorder.retried`), or has failed.
# 6. With the last report `Recorder.ended` (or `failed`) writes the row (`Ledger.put`) and removes the checkpoint.
# 7. `CellQueue.end` tells the row to the search (`Search.tell`), which may choose other cells by it, and the listeners
#    learn of the end (`Viewer.ended`).
# 8. When the search is done and no cell is left, `run_cells` returns. `runner` calls it again for the sensitivity runs
#    (`sensitivity_cells`), makes the run table of all rows (`run_table`) and has the study fitted.

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from study.plan import PlannedCell
from study.run.cell_queue import CellCallback, CellQueue, CellRecorder
from study.run.interrupts import stop_signals
from study.run.trial import TrialSettings, run_trial
from study.search import Source
from study.workers.machines import MachineLosses, Slots


def run_cells(
    source: Source,
    slots: Slots,
    settings: TrialSettings,
    retries: int,
    recorder: CellRecorder,
    scratch: Path,
    trainable: Callable[[dict[str, Any]], None] = run_trial,
    one_machine: bool = True,
    listeners: Sequence[CellCallback] = (),
    trunks: Mapping[str, Sequence[PlannedCell]] | None = None,
) -> bool:
    """Run all cells of a source; return False if the user stopped it (Ctrl-C, SIGTERM, SIGHUP) before the end.

    Then each running cell saves a checkpoint first, unless a second Ctrl-C comes or `seconds_to_save` have passed.
    Each event goes to the `recorder`, which makes the rows, then to the source, then to the `listeners`.
    A cell whose process died is tried again, from its checkpoint, up to `retries` times from the same one. The folder
    `scratch` is for Tune's own files and removed at the end. Unless Ray has only `one_machine`, a machine that loses
    trials is avoided. Benchmarks of the scheduling alone pass another `trainable`. `trunks` are those of the plan,
    whose cells run one by one.
    """
    from ray import tune

    # Ray's core reads the mode of authentication when it is imported, after the caller has set it.
    from study.run import tune_interface as ours

    settings = settings.model_copy(update={"run": f"stop-{secrets.token_hex(8)}"})
    queue = CellQueue(source, settings, MachineLosses(slots), retries, trunks)
    study_callback = ours.StudyCallback(queue, recorder, listeners, one_machine=one_machine)
    stopper = ours.StopWhenSaved(queue, study_callback.notice)

    def resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return ours.resource_request(config, slots)

    tuner = tune.Tuner(
        tune.with_resources(trainable, resources),
        tune_config=tune.TuneConfig(
            search_alg=ours.CellSearcher(queue),
            num_samples=-1,
            max_concurrent_trials=slots.devices,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(scratch.resolve()),
            verbose=0,
            stop=stopper,
            callbacks=[study_callback, ours.SilentReporter()],
        ),
    )
    ours.end_trials_alone_for_memory()
    try:
        with stop_signals() as queue.signals:
            tuner.fit()
    except tune.TuneError:
        # Tune wraps errors of callbacks in the text of a traceback; re-raise the original error (a full disk).
        if study_callback.error is None:
            raise
        raise study_callback.error from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return stopper.since is None and queue.is_done
