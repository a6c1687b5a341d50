"""What the driver reads of a cell's checkpoints."""

from study.run.trial import TrialSettings, saved_step
from trainables.storage.storage import MARKER


def test_a_folder_that_no_save_made_counts_as_no_checkpoint(tmp_path):
    settings = TrialSettings(
        data_root="", checkpoint_root=str(tmp_path), checkpoint_every=None, evaluations=1
    )
    for tag in ("step-000000007-k", "step-000000009-k"):
        (tmp_path / "k" / tag).mkdir(parents=True)
    assert saved_step(settings, "k") == 0
    (tmp_path / "k" / "step-000000007-k" / MARKER).write_text("{}")
    assert saved_step(settings, "k") == 7
    (tmp_path / "k" / "step-x").mkdir()
    (tmp_path / "k" / "step-x" / MARKER).write_text("{}")
    assert saved_step(settings, "k") == 7
