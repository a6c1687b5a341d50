"""Every command in README, CONTRIBUTING and docs is run here, or named below with the test that runs it."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.runs.headings import LETTERS, NAMES
from core.numbers import duration
from study.plan.plan import make_plan
from study.plan.prices import money
from study.plan.speed import Speed, keep, machine
from study.spec.devices import DEVICES
from study.spec.study import load_spec
from study.workers.machines import Slots
from study.workers.ray_session import private_ray
from tests.command import interplay
from tests.tables import foreign_runs
from tests.trainables.data.tokenizer_files import save

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/answer.md",
    "docs/coverage.md",
    "docs/evidence.md",
    "docs/gpu.md",
    "docs/how-to.md",
    "docs/known-models.md",
    "docs/rules.md",
    "docs/published-claims.md",
    "docs/reference.md",
    "docs/tutorial.md",
    "docs/search.md",
    "docs/security.md",
    "docs/spec.md",
    "docs/tables.md",
    "docs/theory.md",
    "docs/wide.md",
    "cluster/README.md",
    "benchmarks/README.md",
)
#: Commands that cannot be run as they stand, and what runs them instead.
ELSEWHERE = {
    "make test": "is what runs this; .ci/run calls it from a bare checkout",
    "make test TESTS=tests/analysis/runs": "test_make_runs_the_tests_of_one_folder",
    "make test-gate": "as above",
    "make test-all": "as above, and the extended tests",
    "make fuzz": "test_fuzz.py, for a minute instead of an hour",
    "make lint": "as above",
    "make study": "test_quickstart.py, by the same target",
    "make evidence": "nothing: it takes an hour; tests/study/spec/test_presets.py plans its study",
    "make evidence-families": "as above, half an hour",
    "make test-gpu": "benchmarks/gpu, which `make test` and `make test-gate` run in miniature",
    "make bench-gpu": "test_gpu_stages.py, in miniature",
    "make bench": "test_bench.py runs its quick parts; the whole takes an hour",
    **dict.fromkeys(
        (
            ".venv/bin/python -m tests.coverage --studies 100 --json coverage.json",
            '.venv/bin/python -m tests.coverage --studies 100 --only "smooth misfit"',
            ".venv/bin/python -m tests.coverage --page",
        ),
        "tests/coverage, with fewer studies",
    ),
    ".venv/bin/python -m tests.coverage.reader --studies 20": "tests/coverage/test_reader.py, without a fit",
    ".venv/bin/python -m benchmarks plan": "test_bench.py, with the interpreter it has",
    "torchrun --nproc-per-node 2 -m trainables cell.json --tensor-parallel 2": "test_parallel.py, on another cell",
    "interplay run quickstart 'frontier.flops=[4e9, 1e10, 3e10]' training.batch=4 name=isoflop": "tests/study/run/"
    "test_study.py, a smaller study",
    "interplay run text training.schedule=wsd training.warmup_steps=50 'training.tokens=[500k, 1M, 2M, 4M]' "
    "name=text-wsd": "tests/study/run/test_trunk_study.py, a smaller study",
    "interplay cost quickstart": "tests/interplay/verbs/test_cost.py, a smaller study",
    "interplay init my-minutes --data corpus.txt --minutes 5": "tests/interplay/verbs/test_init.py, fewer minutes",
    "interplay plan my-minutes.yaml": "as above",
    "interplay run my-minutes.yaml": "tests/study/run/test_study.py, a study of seconds",
    "interplay recommend --train-time 2min --fit my-minutes": "tests/interplay/test_interplay.py, on another table",
    **dict.fromkeys(
        (
            "interplay recommend --kv 256 --fit quickstart",
            "interplay recommend --train-time 8s --fit quickstart",
            "interplay recommend --latency 0.4ms --batch 8 --fit quickstart",
        ),
        "tests/interplay/verbs/test_recommend.py, on another table",
    ),
    "interplay export text L4-d24-s0 --out model": "tests/interplay/verbs/test_export.py, another study",
    "interplay report quickstart": "tests/study/test_study_names.py, another study",
    **dict.fromkeys(
        (
            "interplay run low-resource",
            "for x in 360000 720000 1440000; do "
            "interplay run low-resource training.tokens=$x name=low-resource-$x; done",
            "interplay compare low-resource low-resource-{360000,720000,1440000}",
            "interplay run vocabulary",
            "for x in 64 256 1024; do interplay run vocabulary data.vocabulary=$x name=vocabulary-$x; done",
            "interplay compare vocabulary vocabulary-{64,256,1024}",
            "interplay run very-deep",
            "for x in sqrt linear scaled_norm post admin; do "
            "interplay run very-deep training.residual=$x name=very-deep-$x; done",
            "interplay compare very-deep very-deep-{sqrt,linear,scaled_norm,post,admin}",
            "interplay run analysed-network",
            "for x in gpt2; do interplay run analysed-network training.network=$x name=analysed-network-$x; done",
            "interplay compare analysed-network analysed-network-gpt2",
            "for x in sp completep; do interplay run text training.parametrisation=$x name=transfer-$x; done",
            "interplay compare transfer-sp transfer-completep --out results/transfer",
        ),
        "tests/interplay/verbs/test_compare.py, smaller studies in the same steps",
    ),
    "interplay ui": "test_ui.py, which also ends it",
    "AWS_DEFAULT_REGION=us-west-2 bash cluster/account.sh": "tests/cluster/test_account.py, against moto",
    "AWS_DEFAULT_REGION=us-west-2 bash cluster/account.sh --delete": "as above",
    "interplay cluster check cluster/aws.yaml": "tests/cluster/test_check.py, with the placeholders filled in",
    "interplay cluster check cluster/aws.yaml one-gpu-night": "as above",
    "interplay cluster check cluster/aws.yaml levine2020": "as above",
    "interplay cluster check cluster/onprem.yaml": "as above",
    "interplay cluster token cluster/aws.yaml": "tests/cluster/test_token.py, and test_aws.py in its simulated cloud",
    "interplay cluster token cluster/onprem.yaml": "as above, and test_onprem.py",
    "interplay submit one-gpu-night --cluster cluster/aws.yaml": "tests/cluster/test_submit.py, a smaller study",
    "interplay submit levine2020 --cluster cluster/onprem.yaml": "as above",
    **dict.fromkeys(
        (
            "interplay submit quickstart resources.pool=cpu --cluster cluster/aws.yaml",
            "interplay submit my-study.yaml resources.pool=on_demand --cluster cluster/aws.yaml --no-wait",
            "interplay jobs --cluster cluster/aws.yaml",
            "interplay logs ID --cluster cluster/aws.yaml",
            "interplay stop ID --cluster cluster/aws.yaml",
        ),
        "as above",
    ),
    **dict.fromkeys(
        (
            "ray up cluster/aws.yaml",
            "ray exec cluster/aws.yaml -p 5000 'sleep infinity'",
            "ray down cluster/aws.yaml",
        ),
        "tests/cluster/test_aws.py, in its simulated cloud and with a study of seconds",
    ),
    "ray up cluster/onprem.yaml": "tests/cluster/test_onprem.py, with simulated machines",
    "ray down cluster/onprem.yaml": "as above",
    "ray rsync-up cluster/aws.yaml my-settings.sh /home/ubuntu/interplay-settings.sh": "nothing: Ray's own command, "
    "over the SSH that the tests above use",
    "ray exec cluster/onprem.yaml 'bash ~/interplay/cluster/start_mlflow.sh --stop'": "tests/cluster/"
    "test_mlflow_server.py runs the script",
    "sbatch cluster/slurm.sbatch levine2020": "tests/cluster/test_slurm.py, a smaller study",
    "scancel --batch --signal=TERM JOB": "as above",
    **dict.fromkeys(
        (
            "aws ec2 describe-instances --region REGION --filters Name=tag:ray-cluster-name,Values=interplay "
            "Name=instance-state-name,Values=pending,running --query 'Reservations[].Instances[].InstanceId'",
            "aws s3 rm --recursive s3://BUCKET/",
            'aws budgets create-budget --account-id "$(aws sts get-caller-identity --query Account --output text)" '
            '--budget \'{"BudgetName": "interplay", "BudgetType": "COST", "TimeUnit": "MONTHLY", "BudgetLimit": '
            '{"Amount": "100", "Unit": "USD"}}\' --notifications-with-subscribers \'[{"Notification": '
            '{"NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 50}, "Subscribers": '
            '[{"SubscriptionType": "EMAIL", "Address": "YOU@EXAMPLE.COM"}]}]\'',
            "aws ec2 describe-capacity-block-offerings --region REGION --instance-type p5.48xlarge --instance-count 1 "
            "--capacity-duration-hours 48 --query 'CapacityBlockOfferings[].[CapacityBlockOfferingId, "
            "AvailabilityZone, StartDate, EndDate, UpfrontFee]' --output text",
            "aws ec2 purchase-capacity-block --region REGION --capacity-block-offering-id OFFERING --instance-platform "
            "Linux/UNIX",
        ),
        "tests/cluster/test_account.py, in an account played by moto",
    ),
    **dict.fromkeys(
        (
            "kubectl apply -f cluster/kuberay/rayjob.yaml",
            "kubectl get rayjob interplay-levine2020",
            "kubectl delete -f cluster/kuberay/rayjob.yaml",
        ),
        "nothing: it needs a Kubernetes; tests/cluster/test_files.py checks the file",
    ),
    "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[cluster]'": "the Makefile does the same, "
    "with more packages",
}
#: Commands that need the rows of a quickstart, which test_quickstart.py has; it runs these.
AFTER_QUICKSTART = (
    "interplay recommend --fit results/quickstart/fit.json 3e3 12e3",
    "interplay fit mlflow:quickstart --json",
    "interplay export quickstart L4-d16-s0 --out model",
    "interplay mirror quickstart",
)
#: Commands that train, run with the slow tests, and what else cuts them short.
SLOW = {
    "interplay run text data.path=corpus.txt": "",
    "interplay run llama-text data.path=corpus.txt": "",
    "interplay run text resources.tensor_parallel=2": " frontier.budgets=[12000]",
    "interplay run my-study.yaml": "",
    "interplay run quickstart name=my-text data.path=corpus.txt": " frontier.budgets=[3100]",
    "interplay run frontier-search": " training.steps=60 frontier.budgets=[3500,8000]",
    "interplay run quickstart-search": " search.max_cells=8",
    "interplay run rank-collapse": " frontier.depths=[2,6]",
    "interplay run induction": "",
    "interplay run hops": " training.steps=200",
    "interplay run connectivity": " training.steps=200",
    "interplay run stairs": " training.steps=200",
    "interplay run stairs training.context=64 training.seeds=1 name=stairs-64": " training.steps=200",
    "interplay run low-resource frontier.d_ff=0 training.tokens=360000 "
    "name=attention-only": " training.tokens=null frontier.budgets=[1730]",
    "interplay run one-wide-layer": " frontier.depths=[1,4]",
}


#: Recorded on two cores for the studies of `interplay init` on bytes. Other tests measure a speed
#: (tests/study/run/test_preparation.py, tests/interplay/verbs/test_init.py).
SPEED = {
    "step": 1e-4, "layer": 1.3e-3, "work": 1.0, "device": "cpu", "cells": ["L1-d12"], "date": "2026-11-28",
    "busy": False,
    "recipe": {
        "network": "gpt2", "optimizer": "adamw", "residual": "pre", "precision": "fp32", "batch": 32, "context": 128,
        "vocabulary": 257,
    },
}  # fmt: skip


def commands():
    """The lines of the console blocks, without prompt and comment."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.S):
            for line in block.splitlines():
                assert line.startswith("$ "), f"{page}: {line!r} is no command"
                found.append(line[2:].split(" #")[0].strip())
    return found


def run(command, folder, start=interplay):
    command, _, target = command.partition(" > ")
    name, *arguments = shlex.split(command)
    assert name == "interplay"
    if "my-study.yaml" in arguments:
        assert start(folder, "init", "my-study", "--data", "corpus.txt", "--hours", "1").returncode == 0
    done = start(folder, *arguments)
    if {"my-study", "my-study.yaml"} & {*arguments} and arguments[0] != "run":
        # Neither has timed the machine, which takes up to 30 s: the recorded speed is of such a study.
        (speed,) = json.loads((Path(os.environ["XDG_CACHE_HOME"]) / "interplay" / "speed.json").read_text())
        assert speed["cells"] == SPEED["cells"]
    if target:
        (folder / target).write_text(done.stdout)
    return done


def provide(command, folder):
    """Write the files and columns that a command of the pages names beside those of `folder`."""
    if "data.tokenizer=my-tokenizer" in command:
        save(folder / "my-tokenizer", "llama")
    if "bits_per_byte=val_bpb" in command:
        runs = pd.read_csv(folder / "their_runs.csv")
        runs.assign(val_bpb=runs["final_loss"] / 2.5).to_csv(folder / "their_runs.csv", index=False)
    if "data.path=train.bin" in command:
        (np.arange(60_000) % 50_257).astype(np.uint16).tofile(folder / "train.bin")


@pytest.fixture
def folder(tmp_path):
    """What the pages assume a reader has: a table of runs, a text, and a machine that has timed its steps once."""
    keep(Speed(**SPEED, machine=machine(DEVICES["cpu"]), workers=make_plan(load_spec("quickstart")).slots))
    header, *rows = foreign_runs("final_loss").splitlines()
    (tmp_path / "their_runs.csv").write_text("\n".join([f"{header},dataset", *(f"{row},c4" for row in rows)]))
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    (tmp_path / "corpus.txt").write_text("\n\n".join(p.read_text() for p in sources[:60]))
    return tmp_path


def test_the_pages_have_commands_and_the_lists_above_no_others():
    assert len(commands()) > 12
    assert set(ELSEWHERE) | set(AFTER_QUICKSTART) | set(SLOW) <= set(commands())


QUICK = sorted({c for c in commands() if c not in ELSEWHERE and c not in AFTER_QUICKSTART and c not in SLOW})


def with_marks(command):
    """Mark the commands that fit a table, simulate studies or time the machine as slow."""
    is_slow = command.startswith(tuple(f"interplay {verb}" for verb in ("fit", "report", "power", "try")))
    return pytest.param(command, marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize("command", map(with_marks, QUICK))
def test_a_command_of_the_pages_works(command, folder):
    provide(command, folder)
    done = run(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    # The one word on stderr is how to train the cell that is printed.
    assert done.stderr == "" or (
        " --cell " in command and done.stderr.startswith(("torchrun ", "python -m trainables "))
    )


def with_tier(command):
    """Mark the presets of docs/published-claims.md, which train alike, as extended."""
    alike = ("low-resource", "rank-collapse", "induction", "hops", "connectivity", "stairs", "one-wide-layer")
    return pytest.param(
        command, marks=pytest.mark.extended if command.split()[2] in alike else pytest.mark.slow
    )


@pytest.fixture(scope="module")
def ray():
    """The private Ray of a study, started once: 20 s that each of the commands below would take."""
    with private_ray(Slots(2, 1, 0)):
        yield


@pytest.mark.parametrize("command", map(with_tier, SLOW))
def test_a_training_command_of_the_pages_works(command, folder, ray, monkeypatch):
    """The command itself, cut short by overrides: the preset's size is for a laptop's half hour."""
    monkeypatch.setattr("study.run.runner.private_ray", lambda slots: contextlib.nullcontext())
    short = " training.steps=20 training.seeds=1 frontier.depths=[1,2]"
    done = run(command + short + SLOW[command], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    named = re.search(r" name=(\S+)", command)
    name = named[1] if named else Path(command.split()[2]).stem
    assert (folder / "results" / name / "report.html").is_file()


@pytest.mark.parametrize(
    "target", ["study", "test", "test-gate", "test-all", "test-gpu", "fuzz", "lint", "bench", "bench-gpu"]
)
def test_make_targets_run_what_the_pages_say(target):
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    done = subprocess.run(["make", "-n", "-C", ROOT, target], capture_output=True, text=True, check=True)
    expected = {
        "study": "interplay run quickstart",
        "test": '-m "not slow and not extended"',
        "test-gate": '-m "slow and not extended"',
        "test-all": "-m extended",
        "fuzz": "INTERPLAY_FUZZ_SECONDS=3600",
        "lint": "mypy",
        "bench": "-m benchmarks",
        "test-gpu": "pytest --no-loadscope-reorder --durations=10 tests/test_gpu_stages.py",
        "bench-gpu": "-m benchmarks.gpu build/gpu.json",
    }
    assert expected[target] in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "status", "again"),
    [
        (("busy", "fine"), 0, {("PASSED", "busy")}),
        (("busy", "defect"), 2, {("PASSED", "busy"), ("FAILED", "defect")}),
        (("busy", "crash"), 2, set()),
    ],
)
def test_the_gate_runs_failed_tests_once_more(
    tests: tuple[str, ...], status: int, again: set[tuple[str, str]], tmp_path: Path
) -> None:
    done = gate(tmp_path, tests)
    assert done.returncode == status, done.stdout + done.stderr
    second = done.stdout.partition("once more")[2]
    assert set(re.findall(r"^(PASSED|FAILED) .*::test_(\w+)", second, re.M)) == again
    # The crash ends the second run before its summary.
    assert "crash" in tests or re.match(r"=+ .*\b1 passed.* in [\d.]+s", second.strip().splitlines()[-1])


@pytest.mark.slow
def test_the_gate_runs_nothing_again_unless_tests_failed(tmp_path: Path) -> None:
    assert "once more" not in gate(tmp_path, ("fine",)).stdout
    (tmp_path / "conftest.py").write_text("import missing_module\n")
    crashed = gate(tmp_path, ("fine",))
    assert crashed.returncode == 2
    assert "once more" not in crashed.stdout


def gate(folder: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """`make test-gate` on a folder with some of these tests and one that passes."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    bodies = {
        "busy": "assert second('busy')",
        "defect": "assert False",
        "crash": "os._exit(7)",
        "fine": "pass",
    }
    (folder / "test_it.py").write_text(
        "import os, pytest\nfrom pathlib import Path\npytestmark = pytest.mark.slow\n"
        "def second(name):\n    was = Path(name).exists()\n    Path(name).touch()\n    return was\n"
        "def test_beside(): pass\n" + "".join(f"def test_{name}(): {bodies[name]}\n" for name in tests)
    )
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n slow:\n extended:\n")
    command = [
        "make",
        "-f",
        ROOT / "Makefile",
        "-o",
        ".venv/.installed",
        f"PYTEST={sys.executable} -m pytest",
    ]
    # This test may itself run under make, whose variables would make the inner one print its folder.
    env = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(
        [*command, "test-gate"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def test_make_runs_the_tests_of_one_folder():
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    command = ["make", "-n", "-C", ROOT, "test", "TESTS=tests/analysis/runs"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--junitxml=build/tests/fast.xml tests/analysis/runs" in done.stdout


def test_paths_named_in_the_pages_exist():
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert text.startswith("# "), f"{page} has no title"
        for path in re.findall(r"`((?:trainables|study|analysis|cluster|tests)/[\w./-]+)`", text):
            assert (ROOT / path).exists(), f"{page} names {path}"
        for link in re.findall(r"\]\(((?!http)[^)]+)\)", text):
            assert ((ROOT / page).parent / link).exists(), f"{page} links {link}"


def test_programs_named_in_the_text_exist() -> None:
    texts = [(ROOT / name).read_text() for name in (*PAGES, "Makefile")]
    named = {found for text in texts for found in re.findall(r"-m (benchmarks|tests)[. ]([a-z]\w*)", text)}
    assert len(named) > 4
    folders = [ROOT / package / name for package, name in named]
    assert [path for path in folders if not (path.is_dir() or path.with_suffix(".py").is_file())] == []


def test_the_prices_in_the_pages_are_those_of_the_plan() -> None:
    """What a reader is about to pay."""
    plan = make_plan(load_spec("one-gpu-night"))
    assert plan.cost is not None
    text = (ROOT / "README.md").read_text()
    (comment,) = re.findall(r"interplay plan one-gpu-night +# (.*)", text)
    assert (
        f"{duration(plan.hours * 3600).replace(' h', ' hours')} of one H100, {money(plan.cost)} at" in comment
    )
    submitted = re.findall(r"interplay submit (\S+)", text)
    assert submitted == ["one-gpu-night"]
    assert f"about {money(plan.cost)}" in (ROOT / "cluster" / "README.md").read_text()
    cost = make_plan(load_spec("levine2020")).cost
    assert f"{money(cost)} for these alone" in (ROOT / "cluster" / "README.md").read_text()


def test_each_walk_names_existing_files_once() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Three walks")[1].split("\n## ")[0]
    steps = re.findall(r"^(\d+)\. `([\w/.]+)`", section, re.M)
    starts = [index for index, (number, _) in enumerate(steps) if number == "1"]
    walks = [[path for _, path in steps[a:b]] for a, b in zip(starts, [*starts[1:], len(steps)], strict=True)]
    assert len(walks) == 3
    for walk in walks:
        assert len(walk) <= 10
        assert len(set(walk)) == len(walk)
        assert all((ROOT / path).is_file() for path in walk)


def test_the_structure_names_existing_folders() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Structure")[1].split("\n## ")[0]
    named = re.findall(r"`((?:study|analysis|trainables)/[\w/.]+)`", section)
    assert len(named) > 15
    assert all((ROOT / path).exists() for path in named)


def test_the_page_on_tables_lists_every_heading_that_is_known():
    page = (ROOT / "docs" / "tables.md").read_text()
    listed = dict(re.findall(r"^\| (\w+) \| (`.*`) \|$", page, re.M))
    letters = {column: [letter for letter, of in LETTERS.items() if of == column] for column in NAMES}
    expected = {column: [*names, *letters[column]] for column, names in NAMES.items()}
    assert {column: re.findall(r"`(\w+)`", names) for column, names in listed.items()} == expected
