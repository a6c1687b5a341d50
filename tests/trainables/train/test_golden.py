"""Training comes to the curves that were written down, at every step."""

import json

import pytest

from tests.trainables.train import golden

HOW = 'If they are meant to change: python -m tests.trainables.train.golden --reason "..."'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def written():
    return json.loads(golden.FILE.read_text())


def bounds(name):
    """The largest relative difference of a loss and of a norm.

    Another instruction set (AVX2 or SSE4 in place of AVX-512, in torch, oneDNN and MKL) changes losses by 3e-7 and
    norms by 1.4e-6; with Muon, which orthogonalises each update, by 5e-6 and 1.2e-4; in bf16 by 3.2e-4 and 4.9e-3. Four
    threads in place of one change no bit.
    """
    if name.startswith("bf16"):
        return 1e-3, 2e-2
    return (2e-5, 5e-4) if name == "muon" else (1e-5, 1e-5)


def test_the_file_has_every_cell_its_reason_and_the_versions_it_was_made_with(written):
    assert list(written["cells"]) == list(golden.CELLS)
    assert written["header"]["reason"]
    assert set(written["header"]["versions"]) == set(golden.VERSIONS)


@pytest.mark.parametrize("name", golden.CELLS)
def test_training_follows_the_curve_that_was_written_down(root, written, name):
    then, now, (loss, norm) = written["cells"][name], golden.curve(name, root), bounds(name)
    made = written["header"]
    assert now["key"] == then["key"], f"{name} has another key. {HOW}"
    assert len(now["losses"]) == golden.STEPS
    for what, bound in (("losses", loss), ("norms", norm), ("evaluations", loss)):
        far = [
            step
            for step, values in enumerate(zip(now[what], then[what], strict=True), 1)
            if values[0] != pytest.approx(values[1], rel=bound, abs=0)
        ]
        assert not far, f"{name}: {what} from the number {far[0]} on are others than in {made}. {HOW}"
    assert now["measures"] == [pytest.approx(of, abs=1e-6) for of in then["measures"]]
    assert now["evaluations"][-1] < now["losses"][0], "it learns"


def test_each_cell_has_a_curve_of_its_own(written):
    """Otherwise the change that a cell stands for would change nothing; pieces of a batch alone are no change."""
    cells = {name: cell["losses"] for name, cell in written["cells"].items() if "pieces" not in name}
    found = list(cells.values())
    assert all(one != other for place, one in enumerate(found) for other in found[:place])
    plain = written["cells"]["plain"]
    assert written["cells"]["four pieces"]["losses"] == pytest.approx(plain["losses"], rel=1e-6)
    assert written["cells"]["four pieces"]["norms"] == pytest.approx(plain["norms"], rel=1e-6)
    assert written["cells"]["bf16"]["losses"] == pytest.approx(plain["losses"], rel=4e-3)


def test_a_file_is_not_written_without_a_reason(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(golden, "FILE", tmp_path / "golden.json")
    for arguments in ([], ["--reason", " "]):
        with pytest.raises(SystemExit):
            golden.main(arguments)
        assert "--reason" in capsys.readouterr().err
    assert not golden.FILE.exists()
