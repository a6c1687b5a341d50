"""An exported model as an MLflow model of the run of its cell."""

import importlib.metadata
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from study.errors import SpecError
from study.results.model_card import CARD
from study.results.sources import existing_experiment
from study.spec.study import load_spec
from study.tracking.mlflow_client import CELL_RUNS, Experiment, first_line
from trainables.record import Record


def find_run(study: str, key: str, results: Path) -> tuple[Experiment, str]:
    """Return the MLflow experiment of a study and the id of a cell's run.

    Raises:
        SpecError: there is no experiment, or it has no run of the cell.
    """
    experiment, problem = existing_experiment(load_spec(str(results / study / "spec.yaml")), results)
    if experiment is not None:
        for run in experiment.runs(f"{CELL_RUNS} AND tags.`interplay.cell` = '{key}'"):
            return experiment, str(run.info.run_id)
    problem = problem or f"MLflow has no run of cell {key} in the study {study!r}"
    raise SpecError(
        f"{problem}, so the model cannot be logged. `interplay run` sends the rows that MLflow lacks; "
        "without --mlflow only the folder is written."
    )


def log_model(experiment: Experiment, run_id: str, record: Record, study: str, folder: Path) -> str:
    """Log an exported folder as an MLflow model of a run and return its address, `models:/ID`.

    A text model gets MLflow's flavor `transformers` (a text-generation pipeline). A model of symbols becomes a Python
    function from sequences of ids to the probabilities of the next id. `mlflow.pyfunc` loads both.

    Raises:
        SpecError: MLflow refused it; `folder` stays.
    """
    from mlflow.entities import LoggedModelOutput
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model

    try:
        logged = experiment.client.create_logged_model(
            experiment.experiment_id,
            name=record.cell.name,
            source_run_id=run_id,
            tags={"interplay.cell": record.key, "interplay.study": study},
            params={"loss": f"{record.loss:.10g}", "tokens": str(record.tokens)},
            model_type="text" if record.tokenizer else "symbols",
        )
        # `log_model` would use MLflow's global run and set it to running, so save here and upload.
        with tempfile.TemporaryDirectory() as scratch:
            target = Path(scratch) / "model"
            model = Model(artifact_path=logged.artifact_location, model_id=logged.model_id, run_id=run_id)
            save = _save_symbols if record.tokenizer is None else _save_text
            save(folder.resolve(), target, f"Interplay cell {record.key}", model)
            experiment.client.log_model_artifacts(logged.model_id, str(target))
        experiment.client.finalize_logged_model(logged.model_id, "READY")
        experiment.client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, record.step)])
    except MlflowException as error:
        raise SpecError(
            f"the model is in {folder}, but MLflow refused it: {first_line(error)} Fix that and export again to "
            "another folder, or leave --mlflow out."
        ) from error
    return str(logged.model_uri)


def _save_symbols(folder: Path, target: Path, name: str, model: Any) -> None:
    import mlflow.pyfunc

    code = importlib.util.find_spec("study.results.symbols_model")
    assert code is not None
    mlflow.pyfunc.save_model(
        str(target),
        python_model=code.origin,
        artifacts={"model": str(folder)},
        pip_requirements=_requirements(),
        mlflow_model=model,
    )


def _save_text(folder: Path, target: Path, name: str, model: Any) -> None:
    """Save a model and its tokenizer without any request to HuggingFace's hub."""
    import mlflow.transformers
    from huggingface_hub import ModelCard
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    network = AutoModelForCausalLM.from_pretrained(folder)
    # MLflow requests the license of this name from the hub; names with spaces are skipped.
    network.name_or_path = name
    mlflow.transformers.save_model(
        {"model": network, "tokenizer": AutoTokenizer.from_pretrained(folder)},
        str(target),
        task="text-generation",
        model_card=ModelCard((folder / CARD).read_text(encoding="utf-8")),
        pip_requirements=_requirements(),
        mlflow_model=model,
    )
    # It links to a page of the hub that does not exist.
    (target / "LICENSE.txt").unlink(missing_ok=True)


def _requirements() -> list[str]:
    return [
        f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in ("torch", "transformers")
    ]
