"""The package of `ray job submit --working-dir .`: every source file, and nothing large or private."""

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from ray._private import ray_constants
from ray._private.runtime_env.packaging import create_package

ROOT = Path(__file__).parents[2]
PACKAGES = ("study", "trainables", "analysis", "cluster")


def tracked(*folders):
    command = ["git", "-C", ROOT, "ls-files", "-z", "--", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no git checkout, so nothing says which files are sources")
    return [name for name in done.stdout.split("\0") if (ROOT / name).is_file() and name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkout after a study: all tracked files, results and other leftovers."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    left = {
        "results/mlflow.db": 3_000_000,
        "results/quickstart/runs.csv": 10,
        ".venv/lib/torch.so": 3_000_000,
        ".git/objects/pack": 3_000_000,
        "study/__pycache__/cli.cpython-311.pyc": 10,
        "interplay.egg-info/PKG-INFO": 10,
        "corpora/wikipedia.txt": 3_000_000,
        "my-study.yaml": 10,
        "corpus.txt": 10,
    }
    for name, size in left.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    return folder


@pytest.fixture(scope="module")
def package(folder, tmp_path_factory):
    """The archive that Ray's client makes of it, with its default excludes."""
    target = tmp_path_factory.mktemp("package") / "package.zip"
    excludes = ray_constants.get_runtime_env_default_excludes()
    create_package(str(folder), target, include_gitignore=True, excludes=excludes)
    return target


def test_every_source_file_is_shipped(package):
    shipped = set(zipfile.ZipFile(package).namelist())
    sources = tracked(*PACKAGES)
    assert {name.split("/")[0] for name in sources} == set(PACKAGES)
    assert set(sources) <= shipped
    assert {"constraints.txt", "pyproject.toml", "README.md", "my-study.yaml", "corpus.txt"} <= shipped


def test_nothing_else_is_shipped(package):
    shipped = zipfile.ZipFile(package).namelist()
    folders = {name.split("/")[0] for name in shipped if "/" in name and not name.endswith("/")}
    assert folders == set(PACKAGES)
    assert not [name for name in shipped if "__pycache__" in name]


def test_the_package_is_small(package):
    # Ray's dashboard refuses 100 MB; the sources are far from it, and each submission sends them all.
    assert package.stat().st_size < 5_000_000


def test_a_source_that_is_ignored_by_git_would_be_missed(folder, tmp_path):
    """A line of .gitignore that is too wide, such as `data`, drops sources; the first test would fail."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".venv", "results", ".git"))
    with (copy / ".gitignore").open("a") as file:
        file.write("data\n")
    create_package(str(copy), tmp_path / "package.zip", include_gitignore=True, excludes=[])
    shipped = set(zipfile.ZipFile(tmp_path / "package.zip").namelist())
    assert not {name for name in shipped if name.startswith("trainables/data/")}
