"""Rules of a cluster file about cost and access, which Ray's schema and EC2 do not check."""

import re
from collections.abc import Mapping
from pathlib import Path as FilePath

from study.cluster.cluster_file import TOKEN
from study.cluster.findings import PLACEHOLDER, Report
from study.cluster.token import open_to_others, read_token
from study.errors import SpecError

#: Above this many minutes, idle machines cost more than a new start would.
LONG_IDLE_MINUTES = 60
LOOPBACK = ("127.0.0.1", "localhost", "::1")

#: Keys of `metadata` that a user edits: the form of the value, and what to give.
AWS_METADATA = {
    "region": (r".+", "an AWS region, such as us-west-2"),
    "zones": (r".+", "availability zones of the region, such as us-west-2a,us-west-2b"),
    "image": (
        r"ami-([0-9a-f]{17}|[0-9a-f]{8})",
        "the id of an image of your region: ami- with 8 or 17 digits (cluster/README.md finds one)",
    ),
    "bucket": (
        r"(?!.*\.\.)(?!(\d+\.){3}\d+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
        "the bare name of your S3 bucket: 3 to 63 of a-z, 0-9, `-` and `.`, without s3:// or a folder",
    ),
    "head_profile": (r".+", "the name of the head's instance profile (cluster/README.md makes it)"),
    "worker_profile": (r".+", "the name of the workers' instance profile (cluster/README.md makes it)"),
    "security_group": (
        r"sg-([0-9a-f]{17}|[0-9a-f]{8})",
        "the id of your security group: sg- with 8 or 17 digits (cluster/README.md makes it)",
    ),
}
LOCAL_METADATA = {"storage": (r".+", "a folder or URI that all machines reach")}

_SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}|aws_(secret_)?access_key|(PASSWORD|AUTH_TOKEN|ACCESS_KEY)=[^\s$]", re.IGNORECASE
)


def check_metadata(report: Report, forms: Mapping[str, tuple[str, str]]) -> None:
    """Check that the values a user edits are set, are no placeholders, and have the right form."""
    values = report.file.mapping("metadata")
    for key in (*forms, *(key for key in values if key not in forms)):
        form, purpose = forms.get(key, (r"(?s).*", "your own value"))
        if key not in values:
            report.error(("metadata",), f"`{key}` is missing; give {purpose}")
        elif PLACEHOLDER.search(str(values[key])):
            report.error(("metadata", key), f"`{key}` is still {values[key]}; give {purpose}")
        elif values[key] is None or not re.fullmatch(form, str(values[key])):
            report.error(("metadata", key), f"`{key}` is {values[key]}; give {purpose}")


def check_any(report: Report) -> None:
    """Apply the rules for any provider: token, access, secrets, mounted files, idle machines."""
    _token(report)
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        _start(report, key)
    for key, value in report.file.document.items():
        if _SECRET.search(str(value)):
            report.error(
                (key,),
                "a password, token or AWS key is written here, and this file is copied to every machine; remove it. "
                "Machines have their rights by instance profile; on this machine use AWS_PROFILE or `aws configure`",
            )
    for remote, local in report.file.mapping("file_mounts").items():
        if remote != TOKEN and not FilePath(str(local)).expanduser().exists():
            report.error(
                ("file_mounts", remote),
                f"there is no {local} here; run from the top of the repository, or correct the path",
            )
    minutes = report.file.get("idle_timeout_minutes")
    if isinstance(minutes, int | float) and minutes > LONG_IDLE_MINUTES:
        report.warning(
            ("idle_timeout_minutes",), f"idle machines cost money for {minutes:g} minutes; 5 to 15 are enough"
        )


def check_local(report: Report) -> None:
    """Apply the rules for existing machines, reached by SSH."""
    check_metadata(report, LOCAL_METADATA)
    key = report.file.get("auth", "ssh_private_key")
    if isinstance(key, str) and not FilePath(key).expanduser().is_file():
        report.error(
            ("auth", "ssh_private_key"), f"there is no {key} here; give the path of your private SSH key"
        )


def _token(report: Report) -> None:
    path = report.file.token
    if path is None:
        report.error(
            ("file_mounts",),
            "no token is mounted, so anyone who reaches a port of the machines can run programs there; add "
            f"`{TOKEN}: ~/.ray/interplay-token`",
        )
        return
    try:
        read_token(path, report.file.name)
    except SpecError as error:
        report.error(("file_mounts", TOKEN), str(error).rstrip("."))
        return
    if mode := open_to_others(path):
        report.error(
            ("file_mounts", TOKEN),
            f"others can read the token {path} (mode {mode}); "
            f"correct it by `interplay cluster token {report.file.name}`",
        )


def _start(report: Report, key: str) -> None:
    commands = [str(command) for command in report.file.sequence(key)]
    starts = [index for index, command in enumerate(commands) if re.search(r"\bray start\b", command)]
    if not starts:
        report.error((key,), f"`{key}` has no `ray start`, so Ray would use its own, without a token; add it")
    for index in starts:
        if "RAY_AUTH_MODE=token" not in commands[index]:
            report.error(
                (key, index),
                "`ray start` runs without `RAY_AUTH_MODE=token`, so anyone who reaches the port can run programs; "
                "write `export RAY_AUTH_MODE=token;` before it, in the same command",
            )
        host = re.search(r"--dashboard-host[= ]['\"]?([^\s'\"]+)", commands[index])
        if host and host[1] not in LOOPBACK:
            report.error(
                (key, index),
                f"the dashboard listens on {host[1]} and accepts jobs; write --dashboard-host=127.0.0.1 and use "
                "`ray dashboard`",
            )
