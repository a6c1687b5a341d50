"""The mirror of a study with the targets that its spec names, and `interplay mirror`, which sends what they lack."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from core.command_line import command
from study.errors import SpecError
from study.plan import Plan, make_plan
from study.plan.rows import Row
from study.spec.recorded import study_source
from study.spec.resources import WandbSection
from study.spec.study import StudySpec
from study.tracking.ledger import study_rows
from study.tracking.mirror import Mirror, Target
from study.tracking.mlflow_mirror import MlflowStudy, spec_parameters
from study.tracking.mlflow_store import first_line, sqlite_file, tracking_uri
from study.tracking.study_paths import StudyPaths, study_paths
from study.tracking.tensorboard import TensorBoardStudy
from study.tracking.wandb_runs import WandbStudy


def make_mirror(
    spec: StudySpec, protocol: str, paths: StudyPaths, rows: Iterable[Row], tags: Mapping[str, str]
) -> Mirror:
    """Return the mirror of a study; `rows` may hold those of other studies, and its run has these tags."""
    all_tags = {"interplay.protocol": protocol, "interplay.spec": spec.to_yaml(), **tags}
    targets: list[Target] = [_mlflow_study(spec, paths, all_tags)]
    if "tensorboard" in spec.tracking.also:
        targets.append(TensorBoardStudy(paths.folder / "tensorboard"))
    if "wandb" in spec.tracking.also:
        section = spec.tracking.wandb or WandbSection()
        targets.append(WandbStudy(paths.folder / "wandb", spec.name, spec.experiment, section))
    return Mirror(targets, paths.ledger, [row for row in rows if row.study == spec.name])


def _mlflow_study(spec: StudySpec, paths: StudyPaths, tags: Mapping[str, str]) -> MlflowStudy:
    uri = tracking_uri(spec.tracking.uri, paths.results)
    return MlflowStudy(uri, spec.experiment, paths, tags, spec_parameters(spec))


def mirror_costs(spec: StudySpec, paths: StudyPaths) -> str | None:
    """Give the runs of a study in MLflow its `costs.csv`; return why they lack it, in a sentence, if they do.

    A study without rows, or without a store, has no runs yet; they get the costs when they are written.
    """
    study = _mlflow_study(spec, paths, {})
    try:
        file = sqlite_file(study.uri)
        if (file and not file.exists()) or not any(
            row.study == spec.name for row in paths.ledger.rows().values()
        ):
            return None
        if problem := study.problem():
            return problem
        study.log_costs()
    except Exception as error:  # noqa: BLE001 - no failure of a tracker may fail a measurement
        return f"{study.address}: {first_line(error).rstrip('.')}"
    return None


def mirror_study(spec: StudySpec, results: Path) -> str:
    """Send the rows of a study that its trackers lack, and its answer; return the places and the number of rows.

    Raises:
        SpecError: the study has no rows or is being run, or a tracker cannot be used.
    """
    plan, paths = make_plan(spec), study_paths(spec, results.resolve())
    rows = [row for row in paths.ledger.rows().values() if row.study == spec.name]
    if not rows:
        run = command("run", study_source(spec, results), results=results)
        raise SpecError(
            f"the study {spec.name!r} has no rows in {paths.ledger.name} yet; run it with `{run}`."
        )
    newest = max(rows, key=lambda row: row.ended)
    with paths.locked():
        mirror = make_mirror(spec, plan.protocol, paths, rows, {"interplay.revision": newest.revision})
        mirror.open()
        mirror.start()
        mirror.close(patience=None)
        finished = paths.fit is not None
        done = progress(plan, study_rows(plan, paths.ledger.rows()).values())
        mirror.finish("FINISHED" if finished else "KILLED", "" if finished else done, patience=None)
    refused = [target.refused for target in mirror.targets if target.refused]
    if problems := [target for target in mirror.problems if target not in refused]:
        raise SpecError(f"{'; '.join(problems)}. The rows are in {paths.ledger.name}.")
    store, *others = (target.address for target in mirror.targets)
    places = ", ".join([f"{store}, experiment {spec.experiment}", *others])
    return " ".join(
        [f"{len(rows)} rows of {spec.name} are in {places}.", *(f"{target}." for target in refused)]
    )


def progress(plan: Plan, rows: Collection[Row]) -> str:
    """Return how many cells of an unfinished study are done, in a sentence; a search may choose fewer than planned."""
    done = sum(row.status != "failed" and not row.purpose for row in rows)
    return f"Unfinished: {done} of {plan.search.at_most}{len(plan.cells)} cells are done."
