import hashlib
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from trainables.data import data_key
from trainables.data.kinds.python_source import LARGEST, PythonSourceData, roots, take_files
from trainables.data.store.open import open_store
from trainables.errors import DataError


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "lib"
    (root / "package" / "__pycache__").mkdir(parents=True)
    (root / "site-packages").mkdir()
    (root / "package-1.dist-info").mkdir()
    for i in range(40):
        (root / "package" / f"m{i}.py").write_text(f"x = {i}\n" * 20)
    (root / "package" / "copy.py").write_text("x = 3\n" * 20)
    (root / "package" / "latin.py").write_bytes(b"# caf\xe9\n")
    (root / "package" / "empty.py").write_text("")
    (root / "package" / "table.py").write_text("x\n" * LARGEST)
    (root / "package" / "doc.rst").write_text("A manual\n")
    (root / "package" / "data.json").write_text("{}")
    (root / "package" / "link.py").symlink_to(root / "nowhere.py")
    (root / "package" / "__pycache__" / "m.py").write_text("cached")
    (root / "site-packages" / "other.py").write_text("other")
    (root / "package-1.dist-info" / "licence.txt").write_text("licence")
    return root


def take(root, max_bytes=10**6):
    take_files.cache_clear()
    return take_files(max_bytes, (("lib", root),))


def test_text_files_are_taken_once_each_and_nothing_else(tree):
    taken = take(tree)
    names = {f.name for f in taken}
    expected = {f"lib/package/m{i}.py" for i in range(40)} | {"lib/package/doc.rst"}
    assert len(taken) == 41
    assert names ^ expected in (set(), {"lib/package/m3.py", "lib/package/copy.py"}), "one of the two copies"
    for file in taken:
        assert hashlib.sha256(file.path.read_bytes()).hexdigest() == file.sha256
        assert file.size == file.path.stat().st_size


def test_the_order_is_mixed_the_same_everywhere_and_a_limit_takes_its_beginning(tree, tmp_path):
    names = [f.name for f in take(tree)]
    assert names != sorted(names)
    moved = tree.rename(tmp_path / "elsewhere")
    assert [f.name for f in take(moved)] == names
    few = take(moved, 1000)
    assert [f.name for f in few] == names[: len(few)]
    assert 800 < sum(f.size for f in few) <= 1000


def test_a_machine_without_text_is_an_error(tmp_path):
    with pytest.raises(DataError, match="found no text"):
        take(tmp_path)


def test_the_running_interpreter_has_text_and_the_store_lists_it(tmp_path):
    take_files.cache_clear()
    spec = PythonSourceData(max_bytes=400_000)
    store = open_store(spec, context=64, root=tmp_path)
    files = store.manifest["sources"][0]["files"]
    assert len(files) > 10
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    assert dict(roots())["stdlib"] == stdlib
    one = next(f for f in files if f["path"].startswith("stdlib/"))
    text = (stdlib / one["path"].removeprefix("stdlib/")).read_text(encoding="utf-8")
    assert hashlib.sha256(text.encode()).hexdigest() == one["sha256"]
    # All bytes of the files that fit: the next one, whose size depends on the machine, would not have.
    size = sum(f["bytes"] for f in files)
    assert size <= 400_000 < size + take_files(400_000 + LARGEST, roots())[len(files)].size
    assert size <= len(store.train) + len(store.validation) <= size + 2 * len(files)
    blocks = [set(bytes(t[t < 256].astype(np.uint8)).split(b"\n\n")) for t in (store.train, store.validation)]
    long_ones = [{b for b in side if len(b) > 600} for side in blocks]
    assert long_ones[1]
    assert not long_ones[0] & long_ones[1]
    assert data_key(spec, 64) == store.path.name
    assert data_key(PythonSourceData(max_bytes=300_000), 64) != store.path.name


def test_a_file_that_changes_between_listing_and_packing_is_noticed(tree, tmp_path, monkeypatch):
    monkeypatch.setattr("trainables.data.kinds.python_source.roots", lambda: (("lib", tree),))
    take_files.cache_clear()
    spec = PythonSourceData()
    key = data_key(spec, 64)
    (tree / "package" / "m1.py").write_text("x = 1000\n")
    with pytest.raises(DataError, match=r"m1.py changed while it was being packed"):
        open_store(spec, context=64, root=tmp_path / "stores", key=key)
    take_files.cache_clear()
