"""`interplay cluster check`: the mistakes in a cluster file and the price of a study on it, without the network."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from study.cluster.cluster_file import ClusterFile, need, read
from study.cluster.prices import Pool, hour, pools
from study.cluster.rules import check_any, check_aws, check_local
from study.cluster.schema import check_schema
from study.cluster.study_price import StudyPrice, price_study
from study.errors import SpecError

#: Values of `provider.type` that this command supports, and their rules.
PROVIDERS = {"aws": check_aws, "local": check_local}


@dataclass(frozen=True)
class Checked:
    """A file with its findings, and the prices of its machines."""

    file: ClusterFile
    head_hour: float | None
    """Dollars per hour of the head with its disk; None if it has no known price."""
    pools: list[Pool]
    study: StudyPrice | None

    def to_json(self) -> dict[str, Any]:
        """Return one JSON document."""
        return {
            "file": self.file.name,
            "errors": [asdict(found) for found in self.file.errors],
            "warnings": [asdict(found) for found in self.file.warnings],
            "notes": self.file.notes,
            "price": {
                "head_machine": self.file.get(
                    "available_node_types", self.file.head, "node_config", "InstanceType"
                ),
                "head_hour": self.head_hour,
                "pools": [pool.to_json() for pool in self.pools],
                "study": self.study and asdict(self.study),
            },
        }


def check(name: str, spec: str | None = None, overrides: Sequence[str] = ()) -> Checked:
    """Check a cluster file and, with a spec, whether it fits; SpecError if one cannot be read."""
    if spec is not None and "=" in spec and not Path(spec).is_file():
        raise SpecError(f"`{spec}` overrides a key of a spec, and none is given; write the spec before it.")
    file = read(name)
    if file.provider not in PROVIDERS:
        raise SpecError(
            f"{name} has `provider.type: {file.provider}`; this command supports {' and '.join(PROVIDERS)}."
        )
    need("checking a cluster file", "botocore")
    check_schema(file)
    PROVIDERS[file.provider](file)
    check_any(file)
    found = pools(file)
    study = None if spec is None else price_study(file, found, spec, overrides)
    file.errors.sort()
    file.warnings.sort()
    return Checked(file, hour(file, file.head), found, study)
