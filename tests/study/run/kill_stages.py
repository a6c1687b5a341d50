"""The stages of a row's way from its trial to MLflow, and a driver that is killed at one of them.

`python -m tests.study.run.kill_stages STAGE ARGUMENTS` is the command `interplay`, killed so.
"""

import functools
import importlib
import os
import signal
import sys

#: Module, name, and whether the kill comes before or after the call, by stage; in the order of the way.
STAGES = {
    "before the row file": ("study.tracking.ledger", "Ledger.put", "before"),
    "before the row file has its name": ("pathlib", "Path.replace", "before"),
    "after the row file": ("study.tracking.ledger", "Ledger.put", "after"),
    "before the cell is finished": ("study.tracking.ledger", "UnfinishedCells.end", "before"),
    "after the cell is finished": ("study.tracking.ledger", "UnfinishedCells.end", "after"),
    "after the checkpoint": ("study.run.recorder", "discard", "after"),
    "before MLflow": ("study.tracking.mlflow_mirror", "MlflowStudy.log_row", "before"),
    "before the run of MLflow ends": ("mlflow.tracking", "MlflowClient.set_terminated", "before"),
    "after MLflow": ("study.tracking.mlflow_mirror", "MlflowStudy.log_row", "after"),
    "before the study ends in MLflow": ("study.tracking.mlflow_mirror", "MlflowStudy.finish", "before"),
    "after the study ends in MLflow": ("study.tracking.mlflow_mirror", "MlflowStudy.finish", "after"),
}


def is_of_a_row(name, arguments):
    """Other files than rows get their names by the same call."""
    return name != "Path.replace" or arguments[0].parent.name == "rows"


def kill_at(stage):
    """Have this process killed when it first comes to a stage."""
    module, name, when = STAGES[stage]
    *owners, last = name.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    whole = getattr(owner, last)

    @functools.wraps(whole)
    def deadly(*arguments, **options):
        if when == "after":
            whole(*arguments, **options)
        if is_of_a_row(name, arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments, **options)

    setattr(owner, last, deadly)


if __name__ == "__main__":
    kill_at(sys.argv.pop(1))
    from interplay.cli import main

    main()
