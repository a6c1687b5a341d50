"""`interplay cluster check`: all that can be said of a cluster file without asking the network."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from study.cluster.cluster_file import read
from study.cluster.extra import need
from study.cluster.findings import Finding, Report
from study.cluster.pools import Pool, head_hour, pools
from study.cluster.rules import check_all, check_local, check_pools
from study.cluster.study_price import StudyPrice, price_study
from study.errors import SpecError

#: Kinds of machines whose rules are known here.
PROVIDERS = ("aws", "local")


@dataclass(frozen=True)
class Checked:
    """What was found in a file, and what its machines cost."""

    file: str
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    notes: tuple[str, ...]
    head_machine: str | None
    head_hour: float | None
    """Dollars for an hour of the head, its disk counted; None where it cannot be priced."""
    pools: tuple[Pool, ...]
    study: StudyPrice | None

    def to_json(self) -> dict[str, Any]:
        """Return the whole as one JSON document."""
        return {
            "file": self.file,
            "errors": [found.to_json() for found in self.errors],
            "warnings": [found.to_json() for found in self.warnings],
            "notes": list(self.notes),
            "price": {
                "head_machine": self.head_machine,
                "head_hour": self.head_hour,
                "pools": [pool.to_json() for pool in self.pools],
                "study": None if self.study is None else self.study.to_json(),
            },
        }


def check(name: str, spec: str | None = None, overrides: Sequence[str] = ()) -> Checked:
    """Check a cluster file, and whether a study fits its machines.

    Args:
        name: the file.
        spec: a preset's name or a YAML file; None for the machines alone.
        overrides: `section.key=value` for the spec.

    Raises:
        SpecError: the file cannot be read, or is for machines of another kind; or the spec is wrong.
    """
    if overrides and spec is None:
        raise SpecError("--set changes a spec, and none is given; write it after the file.")
    file = read(name)
    if file.provider not in PROVIDERS:
        raise SpecError(
            f"{name} has `provider.type: {file.get('provider', 'type')}`; this command knows {' and '.join(PROVIDERS)}."
        )
    report = Report(file)
    _machines(report)
    check_all(report)
    found = pools(file)
    study = None if spec is None else price_study(report, found, spec, overrides)
    return Checked(
        file=name,
        errors=tuple(sorted(report.errors)),
        warnings=tuple(sorted(report.warnings)),
        notes=tuple(dict.fromkeys(report.notes)),
        head_machine=file.get("available_node_types", file.head or "", "node_config", "InstanceType"),
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
    check_pools(report)
    check_aws(report)
    if not has_credentials():
        report.warning(
            ("provider",),
            "no credentials of AWS are set up on this machine (environment, ~/.aws); run `aws configure`, or set "
            "AWS_PROFILE. A role that this machine itself may have was not asked for",
        )
    report.notes.append(
        "whether your account's quotas allow so many machines cannot be known here: see Service Quotas in the console, "
        "Amazon EC2, `Running On-Demand …` and `All … Spot Instance Requests`"
    )


def has_credentials() -> bool:
    """Whether credentials of AWS are set up here, by environment and files alone: no server is asked."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    if {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} & set(
        os.environ
    ):
        return True
    session = Session()
    name = session.get_config_variable("profile") or "default"
    try:
        profile = session.full_config["profiles"].get(name, {})
    except BotoCoreError:
        return False
    keys = {
        "aws_access_key_id",
        "role_arn",
        "credential_process",
        "sso_session",
        "sso_start_url",
        "login_session",
    }
    return bool(keys & set(profile))
