"""Run tables that come with Interplay, by name: `interplay fit gemstones`.

A table is shipped only under a licence that allows it; that of the Gemstones is beside them. `gemstones-lr.csv` has
five columns of all rows of its source, with the digits as they were; every other file is unchanged. A test holds the
hash of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from analysis.runs.table import RunTable, read_runs


@dataclass(frozen=True)
class ShippedTable:
    """A run table of the package.

    Attributes:
        file: its name in `analysis/audit/tables`.
        about: what was trained, by whom, where it is from, and the licence.
        sha256: of the file.
        columns: a column of the run table -> its name in the file, where this is not read by itself.
    """

    file: str
    about: str
    sha256: str
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file."""
        return Path(str(resources.files("analysis") / "audit" / "tables" / self.file))

    def read(self) -> RunTable:
        """Return the run table."""
        return read_runs(self.path, dict(self.columns))


_OURS = "by Interplay on English documentation (docs/evidence.md); the licence of Interplay"
TABLES: Mapping[str, ShippedTable] = {
    "gemstones": ShippedTable(
        "gemstones.jsonl",
        "22 shapes of 3 to 80 layers on web text, McLeish et al. 2025 (arXiv 2502.06857), 66 rows of "
        "github.com/mcleish7/gemstone-scaling-laws; MIT licence",
        "90a53a7ddc894f1b1857583391b4cf9d970955ac72534582dc502f7ccdc63aa9",
        {"loss": "final_loss", "params": "params_active_precise"},
    ),
    "gemstones-lr": ShippedTable(
        "gemstones-lr.csv",
        "20 of these shapes in an ablation of the learning rate, up to 100 billion tokens, 200 rows of "
        "`wandb_dfs/wandb_df_for_fitting_lr_ablation_hot.jsonl` of github.com/mcleish7/gemstone-scaling-laws at "
        "commit 5f420478f6057b0cbb4d13405fb10ca64675bccb; MIT licence",
        "bb1485dbe8569051a95bcaf468f28e05f02a8bf6eb65b20ca64d079643b391b8",
    ),
    "english": ShippedTable(
        "english.csv",
        f"GPT-2 blocks of 1 to 8 layers, {_OURS}",
        "8f87b28b3d669432e8037f8bc950daf053ee43e517233531ee303bcd40798d88",
    ),
    "english-gpt2": ShippedTable(
        "english-gpt2.csv",
        f"GPT-2 blocks of 1 to 4 layers, {_OURS}",
        "f3761b08781d881c94a2f1c023d63bfcf583c016b766735ac1af46642aaea1b5",
    ),
    "english-llama": ShippedTable(
        "english-llama.csv",
        f"Llama blocks of 1 to 4 layers, {_OURS}",
        "83be51ed7188e72a340e61d3d1681dfae36d00d182a88ea625696cc9bc3858c1",
    ),
}
