"""What sends a running study to MLflow: in the driver's process, or in one of its own (`python -m study.tracking.sender`).

MLflow takes some 25 ms of CPU for the run of one cell, most of them in its database layer. Beside a few workers that is
nothing; beside dozens it is time that the driver would owe them, so that it lets another process spend it.
"""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from study.tracking.mlflow_store import (
    LOST_TRIALS,
    TAG_CHARACTERS,
    CurveUpdate,
    Outbox,
    Row,
    SearchUpdate,
    Store,
    sentence,
    trouble,
)

_LOG = logging.getLogger(__name__)


class Address(BaseModel):
    """Where a sender finds what it sends, and where that goes."""

    model_config = ConfigDict(frozen=True)

    uri: str
    experiment: str
    outbox: Path
    artifacts: Path | None
    study: str
    tags: dict[str, str]


class Batch(BaseModel):
    """What is to be sent: keys of ended cells, whose rows are in the outbox, live curves, and what a search knows."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    ended: list[str]
    live: list[CurveUpdate]
    news: list[SearchUpdate] = Field(default_factory=list)


class Answer(BaseModel):
    """What became of a batch: the server's problem, if it has one."""

    problem: str | None


class Sender(Protocol):
    """Sends batches, and says what is wrong with the tracking server, or None. It raises nothing."""

    def send(self, batch: Batch) -> str | None:
        """Send what can be sent; rows that cannot stay in the outbox, curves that cannot are dropped."""

    def close(self) -> None:
        """Let go of what it holds."""


class InProcessSender:
    """Sends from this process."""

    def __init__(
        self, address: Address, store: Store | None, parent: str | None, problem: str | None
    ) -> None:
        """`store` and the study's run `parent` are None where the server is away, for the reason in `problem`."""
        self.address, self.outbox = address, Outbox(address.outbox)
        self.store, self.parent, self.problem = store, parent, problem
        self._known: dict[str, str] | None = None
        """The runs that were there when the server was found; None where they are to be asked for (again)."""
        self._runs: dict[str, str] = {}
        self._logged: dict[str, tuple[int, int]] = {}
        self._lost: dict[str, str] = {}
        """What MLflow knew of lost trials when this run of the study began to send a cell."""

    def send(self, batch: Batch) -> str | None:
        """Send what can be sent, after what waited for the server if it was away."""
        if (batch.ended or batch.live or batch.news or self.problem) and self._connected():
            rows = [row for cell in batch.ended if (row := self.outbox.get(cell))]
            things: list[CurveUpdate | Row] = [*rows, *batch.live]
            for thing in things:
                self._send(thing)
            if batch.news:
                self._tell(batch.news)
        return self.problem

    def close(self) -> None:
        """Do nothing: the store is the driver's."""

    def _connected(self) -> bool:
        """Whether the server is there; one that was away is asked again, quickly, before anything is sent to it."""
        if self.store and self.parent and self._known is not None and self.problem is None:
            return True
        self.problem = trouble(self.address.uri, timeout=1.0)
        if self.problem:
            return False
        address = self.address
        try:
            self.store = self.store or Store(address.uri, address.experiment, address.artifacts)
            self.parent = self.parent or self.store.begin_study(address.study, address.tags)
            # Once, and not for each cell: to ask for one run takes longer than to make it. After a problem again,
            # because a run may have been made whose answer was lost.
            self._known = self.store.trial_runs()
        except Exception as error:  # noqa: BLE001 - a tracking failure must never end a study; it is reported
            self.problem = sentence(error)
            return False
        for row in self.outbox.rows().values():
            self._send(row)
        return self.problem is None

    def _tell(self, news: list[SearchUpdate]) -> None:
        assert self.store is not None
        assert self.parent is not None
        try:
            self.store.log_news(self.parent, news)
        except Exception as error:  # noqa: BLE001 - as below: the next news replace these
            self.problem = sentence(error)

    def _send(self, thing: CurveUpdate | Row) -> None:
        assert self.store is not None
        assert self.parent is not None
        assert self._known is not None
        cell = thing.cell
        try:
            run_id = self._runs.get(cell)
            if run_id is None:
                found = self._known.get(cell)
                run_id = self.store.trial_run(self.parent, cell, thing.name, thing.params, found)
                self._logged[cell] = self.store.logged(run_id) if found else (-1, -1)
                self._lost[cell] = self.store.lost_trials(run_id) if found else ""
                self._runs[cell] = self._known[cell] = run_id
            self._logged[cell] = self.store.log_curves(
                run_id, thing.points, thing.evaluations, self._logged[cell], thing.start
            )
            tags = _with_earlier(thing.tags, self._lost[cell])
            if isinstance(thing, CurveUpdate) and tags:
                self.store.tag(run_id, tags)
            if isinstance(thing, Row):
                self.store.end_trial(run_id, thing.model_copy(update={"tags": tags}))
                self.outbox.remove(thing)
                self._runs.pop(cell)
                self._logged.pop(cell)
                self._lost.pop(cell)
        except Exception as error:  # noqa: BLE001 - as above: kept in the outbox, shown to the user
            self.problem = sentence(error)


class SubprocessSender:
    """Sends from a process of its own, and from this one should that die."""

    def __init__(self, address: Address) -> None:
        """Start the process with the first batch."""
        self.address = address
        self.process: subprocess.Popen[str] | None = None
        self._here: InProcessSender | None = None

    def send(self, batch: Batch) -> str | None:
        """Let the other process send, and wait until it has."""
        if self._here is None:
            try:
                return self._ask(batch)
            except (OSError, ValueError) as error:
                # It cannot be started, its pipe is broken, or an answer is cut short.
                if self.process:
                    self.process.kill()
                    self.process.wait()
                _LOG.warning(
                    "The process that writes to MLflow is lost (%s); the driver writes itself.",
                    sentence(error),
                )
                self._here = InProcessSender(self.address, None, None, None)
        return self._here.send(batch)

    def _ask(self, batch: Batch) -> str | None:
        text = batch.model_dump_json() + "\n"
        if self.process is None:
            self.process = self._started()
            # Not as an argument, which every user of the machine may read: an address may hold a password.
            text = self.address.model_dump_json() + "\n" + text
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()
        return Answer.model_validate_json(self.process.stdout.readline()).problem

    @staticmethod
    def _started() -> subprocess.Popen[str]:
        # Where this package was found, it is found again, however this process found it.
        path = os.pathsep.join(filter(None, sys.path))
        return subprocess.Popen(
            # -P: a folder named as this package may lie where the study is run.
            [sys.executable, "-P", "-m", "study.tracking.sender"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            # Out of the reach of Ctrl-C: the driver still has rows for it then, and ends it when it ends.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
        )

    def close(self) -> None:
        """End the other process: the end of its input is its end."""
        if self.process:
            with contextlib.suppress(OSError):
                self.process.communicate()


def _with_earlier(tags: Mapping[str, str], earlier: str) -> dict[str, str]:
    """Put the causes of trials that earlier runs of a study lost before those of this one, which hides none of them."""
    lost = tags.get(LOST_TRIALS)
    if not lost:
        return dict(tags)
    # A row that is sent again, because the driver stopped before it was off the outbox, finds its own text.
    is_there = f" | {earlier}".endswith(f" | {lost}")
    text = earlier if is_there else " | ".join(part for part in (earlier, lost) if part)
    return {**tags, LOST_TRIALS: text[:TAG_CHARACTERS]}


def main() -> None:
    """Send the batches that come on stdin after an address, one a line, and answer each on stdout, until the end."""
    # Whatever a library prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sender: InProcessSender | None = None
    for line in sys.stdin:
        if sender is None:
            sender = InProcessSender(Address.model_validate_json(line), None, None, None)
            continue
        problem = sender.send(Batch.model_validate_json(line))
        print(Answer(problem=problem).model_dump_json(), file=answers, flush=True)


if __name__ == "__main__":
    main()
