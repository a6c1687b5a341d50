"""What is skipped because its code has not changed, and what is recorded as passed."""

import os

import pytest

from tests import proof

CASE = '<testcase classname="tests.part.test_a" name="test_{}" time="2.5">{}</testcase>'


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A group of two files, and the JUnit file of a run of its tests after their last change."""
    for name in ("tests/part/test_a.py", "code/a.py", "constraints.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (1e9, 1e9))
    monkeypatch.setattr(proof, "ROOT", tmp_path)
    monkeypatch.setattr(proof, "RECORD", tmp_path / "proved.json")
    monkeypatch.setattr(proof, "JUNIT", tmp_path / "junit.xml")
    monkeypatch.setattr(proof, "GROUPS", {"part": proof.Group("tests/part", ("code",))})

    def write(*outcomes):
        cases = "".join(CASE.format(number, outcome) for number, outcome in enumerate(outcomes))
        suite = f'<testsuite timestamp="2026-01-02T03:04:05+00:00">{cases}</testsuite>'
        proof.JUNIT.write_text(f"<testsuites>{suite}</testsuites>")
        proof.main()
        proof.unchanged.cache_clear()
        return proof.unchanged()

    yield write
    proof.unchanged.cache_clear()


def test_a_group_that_passed_is_skipped_until_a_file_of_it_changes(run, tmp_path):
    assert run("", "") == {"tests/part": "2026-01-02"}
    for name in ("code/a.py", "tests/part/test_a.py", "constraints.txt"):
        before = (tmp_path / name).read_text()
        (tmp_path / name).write_text("changed")
        proof.unchanged.cache_clear()
        assert proof.unchanged() == {}
        (tmp_path / name).write_text(before)
        proof.unchanged.cache_clear()
        assert proof.unchanged() == {"tests/part": "2026-01-02"}
    (tmp_path / "code" / "new.py").write_text("")
    proof.unchanged.cache_clear()
    assert proof.unchanged() == {}


@pytest.mark.parametrize("outcome", ["<failure/>", "<error/>", "<skipped/>"])
def test_a_group_of_which_a_test_did_not_pass_is_not_recorded(run, outcome):
    assert run("", outcome) == {}


def test_a_group_whose_files_changed_during_the_run_is_not_recorded(run, tmp_path):
    os.utime(tmp_path / "code" / "a.py")
    assert run("") == {}


def test_a_run_without_the_group_leaves_its_record(run):
    assert run("") == run() == {"tests/part": "2026-01-02"}
