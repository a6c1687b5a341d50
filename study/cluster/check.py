"""`interplay cluster check`: the mistakes in a cluster file and the price of a study on it, without the network."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from study.cluster.cluster_file import ADDRESS, read
from study.cluster.findings import Finding, Report, need
from study.cluster.prices import Pool, head_hour, pools
from study.cluster.rules import check_any, check_local
from study.cluster.study_price import StudyPrice, price_study
from study.errors import SpecError

#: Values of `provider.type` that this command supports.
PROVIDERS = ("aws", "local")
NO_CREDENTIALS = (
    "this machine has no AWS credentials in its environment or ~/.aws; run `aws configure`, or set AWS_PROFILE. A role "
    f"of the machine itself is not looked up: with one, run `ray dashboard` and submit with --address {ADDRESS}"
)


@dataclass(frozen=True)
class Checked:
    """The findings about a file and the prices of its machines."""

    file: str
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    notes: tuple[str, ...]
    head_machine: str | None
    head_hour: float | None
    """Dollars per hour of the head with its disk; None if it has no known price."""
    pools: tuple[Pool, ...]
    study: StudyPrice | None

    def to_json(self) -> dict[str, Any]:
        """Return one JSON document."""
        return {
            "file": self.file,
            "errors": [asdict(found) for found in self.errors],
            "warnings": [asdict(found) for found in self.warnings],
            "notes": list(self.notes),
            "price": {
                "head_machine": self.head_machine,
                "head_hour": self.head_hour,
                "pools": [pool.to_json() for pool in self.pools],
                "study": None if self.study is None else asdict(self.study),
            },
        }


def check(name: str, spec: str | None = None, overrides: Sequence[str] = ()) -> Checked:
    """Check a cluster file, and whether a study fits its machines.

    Args:
        name: the file.
        spec: a preset's name or a YAML file; None for the machines alone.
        overrides: `section.key=value` for the spec.

    Raises:
        SpecError: the file cannot be read or has another provider, or the spec is wrong.
    """
    if overrides and spec is None:
        raise SpecError("--set changes a spec, and none is given; write the spec after the file.")
    file = read(name)
    if file.provider not in PROVIDERS:
        raise SpecError(
            f"{name} has `provider.type: {file.provider}`; this command supports {' and '.join(PROVIDERS)}."
        )
    report = Report(file)
    _machines(report)
    check_any(report)
    found = pools(file)
    study = None if spec is None else price_study(report, found, spec, overrides)
    return Checked(
        file=name,
        errors=tuple(sorted(report.errors)),
        warnings=tuple(sorted(report.warnings)),
        notes=tuple(dict.fromkeys(report.notes)),
        head_machine=file.get("available_node_types", file.head, "node_config", "InstanceType"),
        head_hour=head_hour(file),
        pools=tuple(found),
        study=study,
    )


def _machines(report: Report) -> None:
    need("checking a cluster file", "botocore")
    from study.cluster.rules_aws import check_aws
    from study.cluster.schema import check_schema

    check_schema(report)
    if report.file.provider == "local":
        check_local(report)
        return
    check_aws(report)
    if not has_credentials():
        report.warning(("provider",), NO_CREDENTIALS)
    report.notes.append(
        "the quotas of your account are not checked: see Service Quotas in the console, Amazon EC2, "
        "`Running On-Demand …` and `All … Spot Instance Requests`"
    )


def has_credentials() -> bool:
    """Whether this machine has AWS credentials in its environment or files; uses no network."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    # botocore would fetch these from a server.
    if {"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} & set(os.environ):
        return True
    session = Session()
    try:
        # The last provider, which requests the metadata server of a machine of EC2.
        session.get_component("credential_provider").remove("iam-role")
        return session.get_credentials() is not None
    except BotoCoreError:
        return False
