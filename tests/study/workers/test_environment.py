"""What trials set for torch before it is imported, and that the user's own values stay."""

from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir

from study.workers.environment import COMPILE_CACHE, added_variables
from trainables.storage.scratch import SCRATCH, own_folder


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocator_grows_its_segments_on_a_gpu_unless_the_user_has_set_it(name):
    added = added_variables({}, on_gpu=True, compile_cache=None)
    assert added == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert added_variables({}, on_gpu=False, compile_cache=None) == {}
    for value in ("backend:cudaMallocAsync", ""):
        assert added_variables({name: value}, on_gpu=True, compile_cache=None) == {}


def test_compiled_layers_are_kept_in_a_folder_of_the_study(monkeypatch, tmp_path):
    assert added_variables({COMPILE_CACHE: "/mine"}, on_gpu=False, compile_cache=tmp_path) == {}
    added = added_variables({}, on_gpu=False, compile_cache=tmp_path / "compiled")
    assert added == {COMPILE_CACHE: str(tmp_path / "compiled")}
    monkeypatch.setenv(*next(iter(added.items())))
    assert cache_dir() == str(tmp_path / "compiled")
    assert (tmp_path / "compiled").is_dir()
    # Another machine has its own folder.
    monkeypatch.setenv(SCRATCH, str(tmp_path / "machine"))
    added = added_variables({}, on_gpu=False, compile_cache="study")
    assert Path(added[COMPILE_CACHE]) == own_folder() / "compiled" / "study"


def test_compiled_layers_are_not_loaded_from_where_others_may_write(monkeypatch, tmp_path, caplog):
    """A shared folder of a group, and a link of another user."""
    monkeypatch.setenv(SCRATCH, str(tmp_path / "machine"))
    shared = tmp_path / "study" / "compiled"
    shared.mkdir(parents=True)
    for mode, is_kept in ((0o775, False), (0o757, False), (0o755, True)):
        shared.chmod(mode)
        added = added_variables({}, on_gpu=False, compile_cache=shared)
        assert Path(added[COMPILE_CACHE]) == (shared if is_kept else own_folder() / "compiled" / "study")
        assert bool(caplog.records) is not is_kept
        caplog.clear()
    link = tmp_path / "link"
    link.symlink_to(shared)
    added = added_variables({}, on_gpu=False, compile_cache=link)
    assert Path(added[COMPILE_CACHE]).is_relative_to(own_folder())
