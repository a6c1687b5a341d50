"""The trainer on one GPU, by the sittings of its measurement; in miniature where there is none."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu import common, life, machine, stages
from benchmarks.gpu.__main__ import measure, table
from benchmarks.gpu.plan import CASE_SECONDS, EVERYTHING, OURS, SITTINGS, WHO, Step, chosen
from benchmarks.gpu.sizes import SIZES

ROOT = Path(__file__).parents[1]
SIZE = "small" if torch.cuda.is_available() else "tiny"
GIVEN = SIZES[SIZE]
#: What the measurement may be without: it is brought to a machine by hand.
ABSENT = (
    "ray",
    "mlflow",
    "optuna",
    "datasets",
    "pandas",
    "scipy",
    "rich",
    "typer",
    "matplotlib",
    "pyarrow",
    "pynvml",
)
#: Stages that are quick or go wrong, in the module `load` of a process.
FAKES = """
import multiprocessing, os, time
from pathlib import Path
from types import SimpleNamespace
from benchmarks.gpu.processes import serve

def rows(sizes, root, count=2):
    print("printed by a library")
    for number in range(count):
        yield {"what": f"row {number}", "value": 1.5}

def raises(sizes, root):
    yield {"what": "before"}
    raise ValueError("a broken stage")

def dies(sizes, root):
    yield {"what": "before"}
    os.write(2, b"the last words")
    os._exit(7)

def hangs(sizes, root):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    yield {"what": "child", "pid": child.pid}
    time.sleep(600)

def contact(sizes, root):
    works = os.environ.get("WORKS", "nothing")
    if works not in [f"{name}={os.environ.get(name)}" for name in ("NCCL_SOCKET_IFNAME", "INTERPLAY_BACKEND")]:
        raise RuntimeError("no interface")
    yield {"what": works}

def environment(sizes, root):
    get = os.environ.get
    yield {"what": "environment", "backend": get("INTERPLAY_BACKEND"), "lo": get("NCCL_SOCKET_IFNAME")}

def reads_the_file(sizes, root):
    file = Path(os.environ["FILE"])
    for number in range(2):
        yield {"what": number}
        deadline = time.monotonic() + 60
        while not (is_kept := file.exists() and f'"what": {number}' in file.read_text()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        yield {"what": "in the file", "value": is_kept}

serve(lambda: SimpleNamespace(STAGES=globals(), has_gpu=lambda: False, about=lambda: {"device": "fake"}))
"""


@pytest.fixture
def fake(tmp_path):
    """Measure steps with fake stages, and return the content of the file."""
    script = tmp_path / "fakes.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{FAKES}")

    def run(*steps, **options):
        out = tmp_path / "gpu.json"
        document = measure(out, steps, "tiny", command=(sys.executable, str(script)), **options)
        assert json.loads(out.read_text()) == document
        return document

    return run


@pytest.fixture(scope="module")
def sitting(tmp_path_factory):
    """Return the content of the file of a sitting, which runs once."""
    documents = {}

    def of(number):
        if number not in documents:
            out = tmp_path_factory.mktemp("sitting") / "gpu.json"
            # More seconds than on a borrowed GPU, because a machine that runs tests is busy.
            documents[number] = measure(out, chosen(number, SIZE), SIZE, 1000)
            assert json.loads(out.read_text()) == documents[number]
        return documents[number]["stages"]

    return of


def by_name(rows):
    """The rows of a stage by `what`; numbers are finite and none is negative."""
    json.dumps(rows, allow_nan=False)
    assert all(value >= 0 for row in rows for value in row.values() if isinstance(value, int | float))
    return {row["what"]: row for row in rows}


def rows_of(stage, tmp_path, **options):
    return by_name(list(stages.STAGES[stage](GIVEN, tmp_path, **options)))


@pytest.mark.slow
@pytest.mark.parametrize("number", SITTINGS)
def test_a_sitting_runs_all_its_stages(sitting, number):
    stages_of = sitting(number)
    assert list(stages_of) == [step.title for step in chosen(number, SIZE)]
    for title, stage in stages_of.items():
        assert "error" not in stage, title
        assert by_name(stage["rows"]), title


def test_every_case_is_timed_and_every_stage_runs():
    assert {step.stage for step in EVERYTHING} == set(stages.STAGES)
    assert CASE_SECONDS.keys() == SIZES["full"].cases.keys() == SIZES["tiny"].cases.keys()
    timed = chosen(only=["throughput"], cases=["1.3B"])
    assert sorted(step.options["who"] for step in timed) == sorted(WHO)
    assert {step.options["who"] for step in chosen(only=["profile"])} == set(OURS)
    assert len({step.title for step in EVERYTHING}) == len(EVERYTHING)
    # What comes first is what the first sitting begins with, and a smaller size has fewer cases.
    assert chosen()[: len(SITTINGS["1"])] == list(SITTINGS["1"])
    assert {step.options.get("case") for step in chosen("2", "small")} == {None, "10M-8k"} | {"125M"}


def test_the_ceilings_are_measured(tmp_path):
    rows = rows_of("ceilings", tmp_path)
    assert rows["product, bf16"]["FLOP/s"] > 0
    assert {"copy on the device", "copy to the device, pageable", "copy to the device, pinned"} < set(rows)


def test_facts_have_versions_and_the_kernels_of_attention(tmp_path):
    rows = rows_of("facts", tmp_path)
    assert rows["torch"]["value"] == torch.__version__
    assert rows["cores"]["value"] >= 1
    for head in machine.HEADS:
        assert {rows[f"attention, {head} wide"][name] for name in ("bfloat16", "float32")} <= {
            "cudnn",
            "flash",
            "efficient",
            "math",
        }


@pytest.mark.slow
def test_the_first_steps_work_in_both_precisions(sitting):
    fp32, bf16 = sitting("1")["contact"]["rows"]
    assert fp32["loss"] == pytest.approx(bf16["loss"], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_losses_are_those_of_a_plain_loop(sitting, compiled):
    rows = by_name(sitting("1")[f"agreement: compiled={compiled}"]["rows"])
    assert rows["fp32"]["apart"] < 1e-4
    assert rows["bf16"]["apart"] < 5e-3
    assert all(row["last"] < row["first"] for row in rows.values())


@pytest.mark.slow
def test_a_process_trains_cell_after_cell_runs_out_of_memory_is_killed_and_goes_on(sitting):
    rows = by_name(sitting("1")["life"]["rows"])
    assert all(row["bytes left"] < 60e6 for what, row in rows.items() if what.startswith("after"))
    tried = rows["out of memory"]["sequences tried"]
    assert len(tried) > 1
    assert all(fewer == more // 2 for more, fewer in itertools.pairwise(tried))
    assert rows["killed and resumed"]["from step"] > 0
    assert rows["killed and resumed"]["apart"] < 1e-3
    assert rows["weights read by transformers"]["apart"] < 1e-3


@pytest.mark.slow
def test_two_ranks_have_the_losses_of_one(sitting):
    rows = by_name(sitting("1")["gangs"]["rows"])
    assert len(rows) == 2 * len(life.GANGS)
    for what, row in rows.items():
        assert row["apart"] < (1e-5 if what.endswith("fp32") else 1e-3)


@pytest.mark.slow
def test_the_largest_micro_batch_fits(sitting):
    (largest,) = sitting("2")["memory"]["rows"]
    assert largest["sequences"] >= 1
    assert largest["bytes"] < largest["of"]
    # In miniature the buffers of the libraries outweigh the tensors; `test_memory.py` checks the estimate on a CPU.
    assert not torch.cuda.is_available() or 0.85 < largest["estimate over it"] < 1.15


@pytest.mark.slow
def test_speeds_and_utilisation_belong_together(sitting):
    peak = common.this_device().peak["bf16"]
    rows = [
        (step.options, sitting(number)[step.title]["rows"])
        for number in SITTINGS
        for step in chosen(number, SIZE, ["throughput"])
    ]
    assert len(rows) > 1
    for options, (row,) in rows:
        case = GIVEN.cases[options["case"]]
        assert (row["what"], row["who"]) == (case.name, options["who"])
        assert row["ms per step"] * row["tokens/s"] == pytest.approx(1e3 * case.batch * case.context)
        # 6 FLOPs per parameter of the blocks and the head and token, and the attention.
        shape, least = case.shape, 6 * case.vocabulary * case.shape.width
        least += 72 * shape.depth * shape.width**2
        assert 1 <= row["MFU"] * peak / row["tokens/s"] / least < 1.6
        if torch.cuda.is_available() and options["who"] in OURS:
            assert 0.85 < row["estimate over peak"] < 1.15


@pytest.mark.slow
def test_a_profile_accounts_for_the_time_of_steady_steps(tmp_path):
    step, *rows = stages.STAGES["profile"](GIVEN, tmp_path, case="125M", who="ours")
    kinds = [row for row in rows if row["what"] not in ("kernel", "the host waits")]
    for name in ("ms per step", "share", "calls per step"):
        assert sum(row[name] for row in kinds) == pytest.approx(step[name])
    assert step["busy"] == pytest.approx(step["ms per step"] / step["wall ms per step"])
    assert {"attention", "products", "optimizer"} <= {row["what"] for row in kinds}
    longest = [row["ms per step"] for row in rows if row["what"] == "kernel"]
    assert longest == sorted(longest, reverse=True)
    if not torch.cuda.is_available():
        # Forward and backward of each layer, and one step of the optimizer for both groups.
        calls = {row.get("name"): row["calls per step"] for row in rows}
        depth = GIVEN.cases["125M"].shape.depth
        assert calls["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] == depth
        assert calls["aten::_scaled_dot_product_flash_attention_for_cpu"] == depth
        assert calls["Optimizer.step#AdamW.step"] == 1


def test_attention_is_timed_by_the_width_of_a_head(tmp_path):
    rows = rows_of("attention", tmp_path)
    assert len(rows) == len(GIVEN.heads) * len(GIVEN.contexts)
    for row in rows.values():
        assert row["FLOP/s"] > 0
        assert ("flash FLOP/s" in row) == (row["kernel"] == "cudnn")
    if torch.cuda.is_available():
        assert rows[f"64 wide, {GIVEN.contexts[-1]} tokens"]["kernel"] in ("cudnn", "flash")
        assert rows[f"320 wide, {GIVEN.contexts[-1]} tokens"]["kernel"] in ("efficient", "math")


def test_library_defect_torch_names_the_attention_kernel_by_an_internal_function_only():
    """`torch._fused_sdp_choice` obeys the public switch, so it is what attention takes."""
    tensors = machine.views(2, 2, 16, 8, torch.bfloat16)
    for backend, name in ((SDPBackend.MATH, "math"), (SDPBackend.FLASH_ATTENTION, "flash")):
        with sdpa_kernel(backend):
            assert machine.attention_kernel(*tensors) == name


@pytest.mark.slow
def test_processes_share_the_device(sitting):
    rows = by_name(sitting("2")["packing"]["rows"])
    assert list(rows) == [f"{count} processes" for count in GIVEN.processes]


def test_a_checkpoint_is_weighed_and_timed(tmp_path):
    (row,) = rows_of("checkpoints", tmp_path).values()
    case = GIVEN.cases[GIVEN.saved]
    parameters = 12 * case.shape.depth * case.shape.width**2 + case.vocabulary * case.shape.width
    # Weights and both moments in fp32.
    assert row["bytes"] > 12 * parameters
    assert row["saves"] >= 2


@pytest.mark.slow
def test_operations_of_a_layer_are_no_more_than_a_plain_loop_s(sitting):
    rows = by_name(sitting("1")["kernels"]["rows"])
    assert rows["ours, per layer"]["operations"] <= rows["plain torch, per layer"]["operations"] + 5
    assert rows["ours, per layer"]["reads"] == 0


def test_constants_of_a_plan_follow_from_the_steps(tmp_path):
    own, *cells = stages.STAGES["constants"](GIVEN, tmp_path)
    assert own["what"] == common.this_device().name
    assert own["utilisation"] > 0
    # On a busy machine single cells are off; the fitted plan is nearer to all of them than the old one.
    off = [[abs(cell[name] - 1) for cell in cells] for name in ("new", "plan over it")]
    assert sum(off[0]) <= sum(off[1])


def test_quick_weights_have_the_spread_of_drawn_ones(monkeypatch):
    monkeypatch.setattr("benchmarks.gpu.common.BLOCK", 1 << 12)
    monkeypatch.setattr("benchmarks.gpu.common.LARGE", 1 << 13)
    drawn = torch.Tensor.normal_
    with common.quick_weights():
        large = torch.empty(100, 131).normal_(1.0, 0.5, generator=torch.Generator().manual_seed(0))
    block = torch.empty(1 << 12).normal_(1.0, 0.5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(large.flatten()[: 1 << 12], block)
    assert torch.equal(large.flatten()[1 << 12 : 1 << 13], block)
    assert torch.equal(large.flatten()[3 << 12 :], block[: 13_100 - (3 << 12)])
    assert torch.Tensor.normal_ is drawn


def test_rows_are_in_the_file_as_they_come(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("FILE", str(tmp_path / "gpu.json"))
    document = fake(Step("reads_the_file", 1))
    assert [row["value"] for row in document["stages"]["reads_the_file"]["rows"] if "value" in row] == [
        True,
        True,
    ]
    assert document["device"] == "fake"


def test_a_stage_that_raises_or_dies_is_recorded_and_the_next_runs(fake, tmp_path, capsys):
    stages_of = fake(Step("raises", 1), Step("dies", 1), Step("rows", 1, {"count": 3}))["stages"]
    assert stages_of["raises"]["rows"] == stages_of["dies"]["rows"] == [{"what": "before"}]
    assert "ValueError: a broken stage" in stages_of["raises"]["error"]
    assert "status 7" in stages_of["dies"]["error"]
    assert "the last words" in stages_of["dies"]["error"]
    assert len(stages_of["rows: count=3"]["rows"]) == 3
    assert "error" not in stages_of["rows: count=3"]
    assert "printed by a library" in (tmp_path / "gpu.log").read_text()
    shown = capsys.readouterr().out
    assert "| row 2 | 1.5 |" in shown
    assert "ValueError: a broken stage" in shown
    # A repeated step replaces its rows, and the others stay.
    assert list(fake(Step("raises", 1))["stages"]) == ["raises", "dies", "rows: count=3"]


@pytest.mark.slow
def test_a_stage_that_hangs_is_killed_with_its_children_and_the_next_runs(fake):
    stages_of = fake(Step("hangs", 1, most=10), Step("rows", 1))["stages"]
    assert stages_of["hangs"]["error"] == "killed after 10 s"
    assert stages_of["hangs"]["seconds"] < 300
    (child,) = stages_of["hangs"]["rows"]
    assert not psutil.pid_exists(child["pid"]) or psutil.Process(child["pid"]).status() == "zombie"
    assert len(stages_of["rows"]["rows"]) == 2


@pytest.mark.parametrize(
    ("works", "kept"),
    [
        ("NCCL_SOCKET_IFNAME=lo", {"NCCL_SOCKET_IFNAME": "lo"}),
        ("INTERPLAY_BACKEND=gloo", {"INTERPLAY_BACKEND": "gloo"}),
        ("nothing else", {}),
    ],
)
def test_the_first_setting_with_which_contact_works_is_kept(fake, monkeypatch, works, kept):
    monkeypatch.setenv("WORKS", works)
    for name in ("NCCL_SOCKET_IFNAME", "INTERPLAY_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    document = fake(Step("contact", 1), Step("environment", 1))
    tried = ["contact", "contact: NCCL_SOCKET_IFNAME=lo", "contact: INTERPLAY_BACKEND=gloo"]
    tried = tried[: tried.index(f"contact: {works}") + 1] if kept else tried
    assert list(document["stages"]) == [*tried, "environment"]
    assert ["error" in document["stages"][name] for name in tried] == [True] * (len(tried) - 1) + [not kept]
    assert document["environment"] == kept
    (row,) = document["stages"]["environment"]["rows"]
    assert (row["lo"], row["backend"]) == (kept.get("NCCL_SOCKET_IFNAME"), kept.get("INTERPLAY_BACKEND"))


def test_what_does_not_fit_into_the_seconds_is_left_out_and_named(tmp_path, fake):
    command = (sys.executable, str(tmp_path / "fakes.py"))
    steps = [Step("rows", 1000), Step("environment", 1)]
    stages_of = measure(tmp_path / "tiny.json", steps, "tiny", 0.0, command)["stages"]
    assert all("left out" in stage for stage in stages_of.values())
    assert "Left out" in table("rows", stages_of["rows"])
    # At full size the expected time counts, and a later step that fits runs.
    script = tmp_path / "fakes.py"
    script.write_text(script.read_text().replace("has_gpu=lambda: False", "has_gpu=lambda: True"))
    stages_of = measure(tmp_path / "full.json", steps, "full", 500.0, command)["stages"]
    assert "1000" in stages_of["rows"]["left out"]
    assert len(stages_of["environment"]["rows"]) == 1
    # What an earlier call measured stays.
    again = measure(tmp_path / "full.json", steps, "full", 0.0, command)["stages"]
    assert again["environment"] == stages_of["environment"]


@pytest.mark.parametrize("name", ["gpu.log", "folder", "file/gpu.json", "no results.json", "tiny.json"])
def test_a_file_that_cannot_take_the_rows_is_refused_before_anything_starts(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "no results.json").write_text("[1]")
    (tmp_path / "tiny.json").write_text(
        '{"size": "tiny", "stages": {"rows": {"rows": [{"what": "of a CPU"}]}}}'
    )
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    command = (sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')")
    with pytest.raises(SystemExit, match=re.escape(Path(name).name)):
        measure(tmp_path / name, EVERYTHING, "full", None, command)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_measurement_that_is_stopped_ends_its_processes_and_keeps_its_rows(fake, tmp_path, number):
    out = tmp_path / "gpu.json"
    code = f"""
import sys
from benchmarks.gpu import __main__ as script
from benchmarks.gpu.plan import Step
script.measure.__defaults__ = (None, [sys.executable, {str(tmp_path / "fakes.py")!r}])
script.chosen = lambda *options: [Step("hangs", 1)]
sys.argv = ["benchmarks.gpu", {str(out)!r}, "--size", "tiny"]
script.main()
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (out.exists() and "pid" in out.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 1
    assert len(shown.splitlines()) == 1
    _, alive = psutil.wait_procs(children, timeout=10)
    assert [child for child in alive if child.status() != "zombie"] == []
    stage = json.loads(out.read_text())["stages"]["hangs"]
    assert (len(stage["rows"]), stage["error"]) == (1, "not finished")


def test_a_process_that_cannot_import_ends_the_measurement(tmp_path):
    command = (sys.executable, "-c", "raise ImportError('no such module')")
    with pytest.raises(SystemExit, match="no such module"):
        measure(tmp_path / "gpu.json", EVERYTHING, "tiny", None, command)
    assert not (tmp_path / "gpu.json").exists()


def test_the_page_names_eight_wheels_of_pinned_versions():
    page = (ROOT / "docs" / "gpu.md").read_text()
    (built,) = re.findall(r"pip wheel .* (\S+)\n", page)
    (downloaded,) = re.findall(r"pip download .*\\\n +(.*)\n", page)
    names = {built, *downloaded.split()}
    assert len(names) == 8
    assert names <= {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}


@pytest.mark.slow
def test_the_script_needs_torch_and_eight_wheels_only(tmp_path):
    code = f"""
import importlib.machinery, sys
find = importlib.machinery.PathFinder.find_spec
def find_others(name, *places):
    return None if name.split(".")[0] in {ABSENT} else find(name, *places)
importlib.machinery.PathFinder.find_spec = staticmethod(find_others)
sys.argv[1:] = ["--stage"]
import benchmarks.gpu.__main__ as script
script.main()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps({"stage": "life", "size": "tiny", "options": {}, "environment": {}}),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[-1] == {"done": True}
    assert answers[-2]["row"]["what"] == "weights read by transformers"


@pytest.mark.slow
def test_the_script_chooses_steps_and_shows_a_file(tmp_path):
    script, out = [sys.executable, "-m", "benchmarks.gpu"], str(tmp_path / "gpu.json")
    options = ["--size", "tiny", "--only", "throughput", "--case", "10M", "--who", "plain torch"]
    measured = subprocess.run([*script, out, *options], cwd=ROOT, capture_output=True, text=True, check=True)
    (title,) = json.loads(Path(out).read_text())["stages"]
    assert title == "throughput: 10M, plain torch"
    shown = subprocess.run([*script, "--show", out], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == measured.stdout
    assert "| 1 × 32, 128 tokens | plain torch |" in shown.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.slow
def test_without_a_gpu_the_script_says_so(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no GPU" in done.stderr
    assert not (tmp_path / "gpu.json").exists()
