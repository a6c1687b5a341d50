"""A cluster as its user controls it from the laptop."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cluster.simulated.simulation import Laptop, Running, Simulation, Started

DASHBOARD = "http://127.0.0.1:8265"
MLFLOW = "http://127.0.0.1:5000"
TOKEN = ".ray/interplay-token"
REPOSITORY = Path(__file__).parents[3]


class Cluster:
    """The cluster of one file."""

    def __init__(self, simulation: Simulation, laptop: Laptop, file: str, token: str = TOKEN) -> None:
        """Args: file, from the laptop's working folder; token, the file of its token, from the home."""
        self.simulation, self.laptop, self.file = simulation, laptop, file
        self.token_path = str(laptop.home / token)
        laptop.environment |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": self.token_path,
            "RAY_API_SERVER_ADDRESS": DASHBOARD,
        }

    @property
    def token(self) -> str:
        """The token of the cluster."""
        return (self.laptop.root / self.token_path.lstrip("/")).read_text().strip()

    @property
    def authorised(self) -> str:
        """The header with the token."""
        return f"Authorization: Bearer {self.token}"

    def up(self) -> str:
        """`ray up`; return what it printed."""
        command = ("timeout", "1500", "ray", "up", "-y", "--no-config-cache", self.file)
        return self.laptop.run(*command, timeout=320).stdout

    def down(self) -> str:
        """`ray down`; return what it printed."""
        return self.laptop.run("timeout", "1000", "ray", "down", "-y", self.file, timeout=220).stdout

    @contextlib.contextmanager
    def tunnels(self) -> Iterator[None]:
        """Open tunnels from the laptop to dashboard and MLflow."""
        forward = ("ray", "exec", "--no-config-cache", "-p", "5000", self.file, "sleep infinity")
        with (
            self.laptop.started("ray", "dashboard", "--no-config-cache", self.file),
            self.laptop.started(*forward),
        ):
            for url in (f"{DASHBOARD}/api/version", f"{MLFLOW}/health"):
                self.wait_for(lambda url=url: self.laptop.get(url, self.authorised)[0] == 200, url, 60)
            yield

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float) -> Any:
        """See `Simulation.wait_for`."""
        return self.simulation.wait_for(condition, what, seconds, every=1.0)

    def job(self, name: str) -> str:
        """The state of a job: PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED."""
        status, answer = self.laptop.get(f"{DASHBOARD}/api/jobs/{name}", self.authorised)
        return str(answer["status"]) if status == 200 else f"unknown ({status})"

    def runs(self, experiment: str, kind: str = "trial") -> list[dict[str, Any]]:
        """The runs of a study in MLflow: `name`, `status`, `tags`, `metrics`; none before it has an experiment."""
        found, answer = self.laptop.get(
            f"{MLFLOW}/api/2.0/mlflow/experiments/get-by-name?experiment_name={experiment}"
        )
        if found != 200:
            return []
        query = {
            "experiment_ids": [answer["experiment"]["experiment_id"]],
            "filter": f"tags.`interplay.kind` = '{kind}'",
            "max_results": 1000,
        }
        found, answer = self.laptop.get(f"{MLFLOW}/api/2.0/mlflow/runs/search", body=query)
        return [
            {
                "name": run["info"]["run_name"],
                "status": run["info"]["status"],
                "tags": {tag["key"]: tag["value"] for tag in run["data"].get("tags", ())},
                "metrics": {metric["key"]: metric["value"] for metric in run["data"].get("metrics", ())},
            }
            for run in (answer.get("runs", ()) if found == 200 else ())
        ]

    def losses(self, experiment: str) -> dict[str, float]:
        """The final loss of each finished cell, by its name; each cell may have one MLflow run only."""
        done = [run for run in self.runs(experiment) if run["tags"].get("interplay.status") == "done"]
        found = {run["name"]: run["metrics"]["loss"] for run in done}
        assert len(found) == len(done), "a cell has two runs"
        return found

    def training(self, pool: str) -> list[Running]:
        """The machines of a pool that run a trial."""
        found = []
        for machine in self.simulation.instances(pool).values():
            # It may be booting, or already terminated.
            with contextlib.suppress(AssertionError, KeyError):
                if "ImplicitFunc.train" in self.simulation.ask(machine.name, "ps", "-eo", "args"):
                    found.append(machine)
        return found

    def started_study(self, name: str, *options: str) -> contextlib.AbstractContextManager[Started]:
        """Submit the study of NAME.yaml by the command of README.md, and follow its log."""
        submit = ("ray", "job", "submit", *options, "--working-dir", ".")
        return self.laptop.started(*submit, "--", "python", "-m", "interplay", "run", f"{name}.yaml")

    def written(self) -> Iterator[tuple[Path, bytes]]:
        """Every file that the cluster wrote on any machine, with its content: logs, results, MLflow's store."""
        for name in self.simulation.instances():
            for folder in ("tmp", "home", "var/log"):
                # Unlike `rglob`, it skips folders that are deleted meanwhile, such as SQLite's journals.
                root = self.simulation.root(name)
                for where, folders, names in os.walk(root / folder):
                    if Path("/", Path(where).relative_to(root)) == REPOSITORY:
                        # Machines also have the files of this host, and the repository may be among them.
                        folders.clear()
                        continue
                    for path in (Path(where, one) for one in names):
                        with contextlib.suppress(FileNotFoundError):
                            if path.is_file() and not path.is_symlink():
                                yield path, path.read_bytes()
