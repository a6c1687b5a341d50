"""`interplay export`: a cell found by what a user types, and a folder that HuggingFace loads."""

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from transformers import AutoModelForCausalLM

from interplay.verbs.export import find, loading
from study.plan.plan import make_plan
from study.spec.study import load_spec
from study.tracking.study_paths import StudyPaths, study_paths
from tests.disks import small_disk
from tests.environment import environment_without
from tests.trainables.data.tokenizer_files import MADE, save
from tests.trainables.export.test_weights import TEXT, load, validation_loss
from trainables.data.store.open import open_store
from trainables.record import Keep, read_record
from trainables.train.loop import train

SYMBOLS = "{kind: hierarchy, vocabulary: 8, branching: 2, levels: 4, synonyms: 2, sequences: 500}"
SPEC = """
name: {name}
data: {data}
frontier: {{depths: [1, 2], heads: 2, widths: {{1: [16], 2: [16]}}}}
training: {{steps: {steps}, batch: 4, context: 16, lr: {{rule: width, base: 0.4, cap: 0.04}}, seeds: 2}}
resources: {{device: cpu, slots: 2}}
"""


class Study:
    """A study whose cells were trained in this process, with what a run leaves in its results folder."""

    def __init__(self, folder, name, data=SYMBOLS, steps=3, cells=slice(None)):
        file = folder / f"{name}.yaml"
        file.write_text(SPEC.format(name=name, data=data, steps=steps))
        self.spec, self.results = load_spec(str(file)), folder / "results"
        self.plan = make_plan(self.spec)
        self.where = study_paths(self.spec, self.results)
        self.where.folder.mkdir(parents=True)
        (self.where.folder / "spec.yaml").write_text(self.spec.to_yaml())
        self.kept = {}
        for planned in self.plan.cells[cells]:
            key = planned.cell.key
            weights = Keep(self.where.models / key, "abc123")
            self.kept[key] = train(
                planned.cell, data_root=self.where.data, weights=weights, evaluations=1
            ).loss

    def table(self, status="done", reason=""):
        lines = ["cell,depth,width,seed,status,reason"]
        for planned in self.plan.cells:
            shape = planned.cell.shape
            lines.append(
                f"{planned.cell.key},{shape.depth},{shape.width},{planned.cell.seed},{status},{reason}"
            )
        self.where.runs.write_text("\n".join(lines) + "\n")

    def cell(self, index):
        return self.plan.cells[index].cell


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Study(tmp_path_factory.mktemp("trained"), "symbols")


@pytest.fixture
def study(trained, tmp_path):
    """A copy of one study, to spoil at will."""
    shutil.copytree(trained.results, tmp_path / "results")
    study = copy.copy(trained)
    study.results, study.where = tmp_path / "results", study_paths(trained.spec, tmp_path / "results")
    return study


def test_export_writes_a_folder_that_loads_with_the_two_lines_it_prints(command, study):
    one = study.cell(2)
    status, out, err = command("export", "symbols", one.key, "--out", "model")
    assert (status, err) == (0, "")
    assert f"Wrote symbols L2-d16-s0 ({one.key}) to model." in out
    assert f"{study.kept[one.key]:.6f}" in out
    assert "no tokenizer" in out
    names = {}
    exec("\n".join(out.splitlines()[-2:]), names)  # the lines a user copies
    loss = validation_loss(names["model"].eval(), one, study.where.data)
    assert loss == pytest.approx(study.kept[one.key], rel=1e-6)
    assert {path.name for path in (study.results.parent / "model").iterdir()} == {
        *("README.md", "config.json", "generation_config.json", "interplay.json", "model.safetensors")
    }
    assert not list(study.results.parent.glob(".model*"))
    generation = json.loads((study.results.parent / "model" / "generation_config.json").read_text())
    assert "max_length" not in generation, "transformers warns of it at each generate(max_new_tokens=…)"


def test_export_prints_one_json_document(command, study, tmp_path):
    (tmp_path / "empty").mkdir()
    one = study.cell(0)
    status, out, err = command("export", "symbols", one.key, "--out", "empty", "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["cell"] == one.key
    assert document["loss"] == study.kept[one.key]
    assert document["tokenizer"] is None
    assert document["revision"] == "abc123"
    assert sorted(document["files"]) == sorted(p.name for p in (tmp_path / "empty").iterdir())


def test_the_best_cell_is_that_of_the_lowest_loss_at_the_largest_size(study):
    largest = max(planned.budget for planned in study.plan.cells)
    sized = [planned.cell.key for planned in study.plan.cells if planned.budget == largest]
    assert find("symbols", "best", study.results).record.key == min(sized, key=study.kept.get)


@pytest.mark.parametrize("given", [".", "link"])
def test_the_folder_may_be_the_one_a_shell_stands_in_or_a_link(command, study, tmp_path, monkeypatch, given):
    one = study.cell(0)
    empty = tmp_path / "empty"
    empty.mkdir(0o750)
    if given == ".":
        monkeypatch.chdir(empty)
    else:
        (tmp_path / given).symlink_to("empty")
    made = empty.stat()
    status, out, err = command("export", "symbols", one.key, "--out", given, "--results", study.results)
    assert (status, err) == (0, "")
    assert f"to {given}." in out
    assert (empty / "config.json").is_file()
    assert not list(tmp_path.glob(".*part"))
    # The very folder, so that the shell in it sees the files.
    assert (empty.stat().st_ino, empty.stat().st_mode) == (made.st_ino, made.st_mode)
    names = {}
    exec("\n".join(out.splitlines()[-2:]), names)  # the lines a user copies
    assert validation_loss(names["model"].eval(), one, study.where.data) == pytest.approx(study.kept[one.key])


def test_what_a_disk_that_fills_up_keeps_of_a_copy_does_not_load(command, study, tmp_path):
    with small_disk(tmp_path / "disk", 8):
        status, _, err = command("export", "symbols", study.cell(0).key, "--out", "disk")
        assert status == 2
        assert "No space left" in err
        assert not (tmp_path / "disk" / "config.json").exists()


def test_the_card_says_what_the_model_is(command, study, tmp_path):
    one = study.cell(0)
    assert command("export", "symbols", one.name, "--out", "a/b/model")[0] == 0
    card = (tmp_path / "a" / "b" / "model" / "README.md").read_text()
    metadata, text = card.removeprefix("---\n").split("\n---\n")
    assert "library_name: transformers" in metadata
    assert "pipeline_tag" not in metadata
    for fact in (
        *(
            "depth 1, width 16, 2 heads",
            "3,072 by 12·L·d²",
            f"{study.kept[one.key]:.6f} nats",
            one.key,
            "abc123",
        ),
        *(
            "192 tokens",
            one.data_key,
            "levels 4",
            "no model can do better than",
            "fp32",
        ),
        "begins with the id 8",
    ):
        assert fact in text
    assert str(tmp_path) not in card


def test_a_cell_is_named_by_its_key_or_its_name(study):
    one = study.cell(3)
    for asked in (one.key, one.name):
        assert find("symbols", asked, study.results).record.key == one.key
    assert find("symbols", one.key, study.results).folder == study.where.models / one.key


def test_the_cell_is_that_of_the_study_that_is_named(study, tmp_path):
    other = Study(tmp_path, "longer", steps=4, cells=slice(1))
    for named in ("longer", str(tmp_path / "longer.yaml")):
        assert find(named, "L1-d16-s0", study.results).record.key == other.cell(0).key
    assert find("symbols", "L1-d16-s0", study.results).record.key == study.cell(0).key


def test_of_two_cells_with_one_name_the_key_is_asked_for(command, study, tmp_path):
    one = study.cell(0)
    twin = study.where.models / f"{one.key[:8]}00000000"
    shutil.copytree(study.where.models / one.key, twin)
    status, out, err = command("export", "symbols", one.name, "--out", "model")
    assert (status, out) == (2, "")
    assert "2 cells" in err
    assert one.key in err
    assert twin.name in err
    assert err.count(" tokens, loss ") == 2
    assert not (tmp_path / "model").exists()


def test_what_cannot_be_exported_is_refused_with_the_reason(command, study, tmp_path):
    def refused(*arguments):
        status, out, err = command("export", *arguments)
        assert (status, out) == (2, "")
        assert "Traceback" not in err
        assert not (tmp_path / "new").exists()
        return " ".join(err.split())

    assert "has no weights of a cell 'L9-d9-s9'" in (error := refused("symbols", "L9-d9-s9", "--out", "new"))
    tokens = study.cell(0).recipe.steps * 4 * 16
    assert f"{study.cell(0).name} ({tokens:,} tokens, loss " in error
    assert "has no weights of a cell '0'" in refused("symbols", "0", "--out", "new")
    for asked in ("abc", "best"):
        error = refused("quickstart", asked, "--out", "new", "--results", "elsewhere")
        assert "has no weights of any cell" in error
    assert "holds files already" in refused("symbols", study.cell(0).key, "--out", "results")
    # What can be exported is listed, and the nearest name is proposed as a whole command.
    listed = refused("symbols")
    assert all(one.cell.name in listed for one in study.plan.cells)
    assert shlex.split(listed.split("`")[1])[:4] == ["interplay", "export", "symbols", "best"]
    near = shlex.split(refused("symbols", "L2-d16", "--out", "new").split("`")[1])
    assert near == ["interplay", "export", "symbols", "L2-d16-s0", "--out", "new"]
    unnamed = shlex.split(refused("symbols", "L2-d16-s1").split("`")[1])
    assert unnamed == ["interplay", "export", "symbols", "L2-d16-s1", "--out", "symbols-L2-d16-s1"]
    (tmp_path / "file").write_text("")
    assert "is a file" in refused("symbols", study.cell(0).key, "--out", "file")
    (study.where.models / study.cell(0).key / "interplay.json").write_text("{}")
    error = refused("symbols", study.cell(0).key, "--out", "new")
    assert "interplay.json is damaged, or of another version" in error
    assert f"--cell {study.cell(0).key} > cell.json" in error
    assert "did you mean" in refused("quickstrat", "L1-d16-s0", "--out", "new")


def flip(path):
    """Change one bit of a file's last byte."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
        ("model.safetensors", lambda path: os.truncate(path, 100), "has 100 bytes and was written with"),
        ("model.safetensors", lambda path: path.unlink(), "cannot be read (No such file or directory)"),
        ("model.safetensors", flip, "differs from what was written"),
        ("config.json", flip, "differs from what was written"),
    ],
    ids=["cut", "removed", "flipped", "config"],
)
def test_a_damaged_model_is_refused_with_the_way_to_train_it_again(
    command, study, tmp_path, file, spoil, message
):
    one = study.cell(0)
    path = study.where.models / one.key / file
    spoil(path)
    for asked in (one.key, one.name):
        status, out, err = command("export", "symbols", asked, "--out", "new")
        assert (status, out) == (2, "")
        error = " ".join(err.split())
        assert f"{path} {message}" in error
        assert f"interplay plan {study.where.folder}/spec.yaml --cell {one.key} > cell.json" in error
        assert "--weights DIR" in error
        assert not (tmp_path / "new").exists()
    assert command("export", "symbols", study.cell(1).key, "--out", "new")[0] == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("{}"),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: os.truncate(path, 100),
        lambda path: path.unlink(),
    ],
    ids=["other", "binary", "cut", "removed"],
)
def test_a_record_that_cannot_be_read_stands_in_nobody_elses_way(command, study, tmp_path, spoil):
    spoilt, whole = study.cell(0), study.cell(1)
    spoil(study.where.models / spoilt.key / "interplay.json")
    for asked in (whole.key, whole.name):
        assert find("symbols", asked, study.results).record.key == whole.key

    def refused(asked):
        status, out, err = command("export", "symbols", asked, "--out", "new")
        assert (status, out) == (2, "")
        assert not (tmp_path / "new").exists()
        return " ".join(err.split())

    for asked in (spoilt.key,):
        error = refused(asked)
        assert f"the weights of cell {spoilt.key} of the study 'symbols' are damaged" in error
        assert f"--cell {spoilt.key} > cell.json" in error
        assert "--weights DIR" in error
    error = refused("L9-d9-s9")
    assert f"{spoilt.key} (its record cannot be read)" in error
    assert re.search(rf"{whole.name} \([\d,]+ tokens, loss ", error)

    study.table()
    error = refused(spoilt.name)
    assert spoilt.key in error
    assert "--weights DIR" in error
    assert find("symbols", whole.name, study.results).record.key == whole.key


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        ("done", "", "--weights DIR"),
        ("diverged", "the loss rose", "is diverged and has no weights: the loss rose"),
        ("failed", "out of memory", "is failed and has no weights: out of memory"),
    ],
)
def test_a_cell_without_weights_is_told_from_one_that_is_not_there(
    command, tmp_path, status, reason, message
):
    study = Study(tmp_path, "symbols", cells=slice(0))
    study.table(status, reason)
    for asked in (study.cell(0).key, study.cell(0).name):
        ended, _, err = command("export", "symbols", asked, "--out", "new")
        assert ended == 2
        assert message in " ".join(err.split())


def test_a_model_that_huggingface_has_no_class_for_has_no_weights_and_no_advice_how_to_get_them(
    command, tmp_path
):
    study = Study(tmp_path, "symbols", cells=slice(0))
    study.table()
    spec = study.where.folder / "spec.yaml"
    text = spec.read_text()
    assert "residual: pre" in text
    spec.write_text(text.replace("residual: pre", "residual: admin"))
    ended, _, err = command("export", "symbols", study.cell(0).key, "--out", "new")
    assert ended == 2
    assert "HuggingFace has no class" in " ".join(err.split())
    assert "by hand" not in err


@pytest.mark.extended
def test_the_way_out_for_weights_that_were_not_kept_works(command, tmp_path):
    study = Study(tmp_path, "symbols", cells=slice(0))
    study.table()
    one = study.cell(0)
    err = command("export", "symbols", one.key, "--out", "new")[2]
    lines = err[err.index("`interplay plan") :].split("`")[1::2]
    script = " && ".join(lines).replace("interplay", f"{sys.executable} -m interplay")
    script = script.replace("python -m trainables", f"{sys.executable} -m trainables").replace("DIR", "new")
    subprocess.run(script, shell=True, check=True, capture_output=True, cwd=tmp_path)
    assert read_record(tmp_path / "new").key == one.key


@pytest.mark.slow
def test_weights_kept_where_this_machine_may_not_read_are_told_so(command, tmp_path):
    study = Study(tmp_path, "symbols", cells=slice(0))
    away = "s3://nobody/has?endpoint_override=127.0.0.1:1&scheme=http&region=x"
    (study.where.folder / "storage").write_text(away)
    status, _, err = command("export", "symbols", study.cell(0).key, "--out", "new")
    assert status == 2
    error = " ".join(err.split())
    assert "s3://nobody/has/symbols/models, which cannot be read:" in error
    assert "AWS_ACCESS_KEY_ID" in error


def test_the_plan_says_what_kept_weights_take_where_it_is_much():
    def notes(*arguments):
        return [note for note in make_plan(load_spec(*arguments)).notes if "keep_weights" in note]

    (note,) = notes("levine2020")
    plan = make_plan(load_spec("levine2020"))
    assert f"{4 * sum(planned.parameters.total for planned in plan.cells) / 1e9:.3g} GB" in note
    assert not notes("levine2020", ["resources.keep_weights=none"])
    assert not notes("quickstart")


@pytest.mark.slow
def test_a_study_keeps_its_weights_and_exports_them(tmp_path):
    (tmp_path / "corpus.txt").write_text(TEXT)
    data = f"{{kind: files, path: {tmp_path}/corpus.txt, tokenizer: bpe, vocabulary: 300}}"
    (tmp_path / "whole.yaml").write_text(SPEC.format(name="whole", data=data, steps=10))
    environment = environment_without("RAY_", "MLFLOW_")

    def interplay(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "interplay", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300,
            env={**environment, "HOME": str(tmp_path / "home")}, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout

    # The wider cells are gangs of two, the cell that is exported among them.
    wide = (
        "resources.tensor_parallel={min_width: {2: 16}}",
        "resources.shard_vocabulary=always",
    )
    interplay("run", "whole.yaml", "training.seeds=1", *wide)
    where = StudyPaths(tmp_path / "results", "whole")
    cells = make_plan(load_spec(str(where.folder / "spec.yaml"))).cells
    assert {path.name for path in where.models.iterdir()} == {planned.cell.key for planned in cells}
    assert {read_record(path).revision for path in where.models.iterdir()} != {None}
    document = json.loads(interplay("export", "whole", "L2-d16-s0", "--out", "model", "--json"))
    assert document["tokenizer"] == "bpe"
    record = read_record(tmp_path / "model")
    assert record.layout.tensor_parallel == 2
    rows = where.runs.read_text().splitlines()
    columns = rows[0].split(",")
    (line,) = (row.split(",") for row in rows if row.startswith(record.key))
    assert record.loss == float(line[columns.index("loss")])
    loss = validation_loss(load(tmp_path / "model"), record.cell, where.data)
    assert loss == pytest.approx(record.loss, rel=1e-6)


def test_the_printed_loading_lines_of_a_text_model_work(command, tmp_path):
    (tmp_path / "corpus.txt").write_text(TEXT)
    study = Study(tmp_path, "text", f"{{kind: files, path: {tmp_path}/corpus.txt}}", cells=slice(1))
    out = command("export", "text", study.cell(0).name, "--out", "model")[1]
    names = {}
    exec("\n".join(out.splitlines()[-2:]), names)  # the lines a user copies
    assert names["tokenizer"].decode(names["tokenizer"].encode("naïve 🦊")) == "naïve 🦊"
    assert isinstance(names["model"], type(AutoModelForCausalLM.from_pretrained(tmp_path / "model")))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card
    assert "files corpus.txt" in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize(("name", "config"), [("byte-level", True), ("llama", True), ("llama", False)])
def test_a_model_of_the_users_own_tokenizer_comes_with_it(command, tmp_path, name, config):
    """Plain transformers gives the ids of training by default, though the file adds `<s>` to each text."""
    (tmp_path / "corpus.txt").write_text(TEXT)
    end = MADE[name][1]
    save(tmp_path / "mine", name, config=config)
    own = f", tokenizer: mine, max_tokens: 9000{'' if config else f', end_of_text: {end}'}"
    study = Study(tmp_path, "text", f"{{path: corpus.txt{own}}}", cells=slice(1))
    shutil.rmtree(tmp_path / "mine")
    assert command("export", "text", study.cell(0).name, "--out", "model")[::2] == (0, "")
    names = {}
    exec("\n".join(loading(read_record(tmp_path / "model"), str(tmp_path / "model"))), names)
    tokenizer, model = names["tokenizer"], names["model"]
    store = open_store(study.cell(0).data, context=16, root=study.where.data, key=study.cell(0).data_key)
    ids = store.train[:200].tolist()
    text = tokenizer.decode(ids)
    assert tokenizer.encode(text) == ids
    assert model.config.vocab_size == store.vocabulary == study.cell(0).data.vocabulary
    ends = {tokenizer.eos_token_id, model.config.eos_token_id, *store.boundaries}
    assert ends == {tokenizer.convert_tokens_to_ids(end)}
    assert end not in tokenizer.convert_ids_to_tokens(tokenizer.encode(f"a {end} spelled"))
    assert read_record(tmp_path / "model").tokenizer == "file"
    card = (tmp_path / "model" / "README.md").read_text()
    assert "tokenizer in this folder" in card
    assert str(tmp_path) not in card
