"""What trials set for torch before it is imported, and that the user's own values stay."""

import tempfile
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir

from study.workers.environment import COMPILE_CACHE, added_variables


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
    # Another machine has its own temporary folder.
    added = added_variables({}, on_gpu=False, compile_cache="study")
    assert Path(added[COMPILE_CACHE]) == Path(tempfile.gettempdir()) / "study"
