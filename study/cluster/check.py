"""`interplay cluster check`: the mistakes in a cluster file and the price of a study on it, without the network."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from study.cluster.cluster_file import read
from study.cluster.findings import Finding, Report, need
from study.cluster.prices import Pool, head_hour, pools
from study.cluster.rules import check_any, check_aws, check_local
from study.cluster.schema import check_schema
from study.cluster.study_price import StudyPrice, price_study
from study.errors import SpecError

#: Values of `provider.type` that this command supports.
PROVIDERS = ("aws", "local")


@dataclass(frozen=True)
class Checked:
    """The findings about a file and the prices of its machines."""

    file: str
    errors: list[Finding]
    warnings: list[Finding]
    notes: list[str]
    head_machine: str | None
    head_hour: float | None
    """Dollars per hour of the head with its disk; None if it has no known price."""
    pools: list[Pool]
    study: StudyPrice | None

    def to_json(self) -> dict[str, Any]:
        """Return one JSON document."""
        document = asdict(self)
        machines = [pool.to_json() for pool in self.pools]
        price = {name: document.pop(name) for name in ("head_machine", "head_hour", "pools", "study")}
        return {**document, "price": {**price, "pools": machines}}


def check(name: str, spec: str | None = None, overrides: Sequence[str] = ()) -> Checked:
    """Check a cluster file and, with a spec, whether it fits; SpecError if one cannot be read."""
    if overrides and spec is None:
        raise SpecError("--set changes a spec, and none is given; write the spec after the file.")
    file = read(name)
    if file.provider not in PROVIDERS:
        raise SpecError(
            f"{name} has `provider.type: {file.provider}`; this command supports {' and '.join(PROVIDERS)}."
        )
    need("checking a cluster file", "botocore")
    report = Report(file)
    check_schema(report)
    (check_local if file.provider == "local" else check_aws)(report)
    check_any(report)
    found = pools(file)
    study = None if spec is None else price_study(report, found, spec, overrides)
    return Checked(
        file=name,
        errors=sorted(report.errors),
        warnings=sorted(report.warnings),
        notes=report.notes,
        head_machine=file.get("available_node_types", file.head, "node_config", "InstanceType"),
        head_hour=head_hour(file),
        pools=found,
        study=study,
    )
