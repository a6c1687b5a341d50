"""What every cluster file must say for a study to run on its machines, and for nobody else to."""

import re
from pathlib import Path as FilePath

from study.cluster.cluster_file import TOKEN, Path
from study.cluster.findings import PLACEHOLDER, Report, near
from study.cluster.prices import prices
from study.cluster.token import open_to_others

#: Keys of `provider` that Ray's code for machines by SSH reads.
LOCAL_PROVIDER = (
    *("type", "head_ip", "worker_ips", "coordinator_address", "external_head_ip", "use_internal_ips"),
    *(
        "disable_node_updaters",
        "disable_launch_config_check",
        "foreground_node_launch",
        "worker_liveness_check",
    ),
)
#: Minutes: longer than this, idle machines cost more than they save in start-up.
LONG_IDLE_MINUTES = 60
#: Shorter than this, a machine ends while the next cell is being placed on it, and its successor is set up for minutes.
SHORT_IDLE_MINUTES = 0.5
SETUP = "setup_node.sh"
#: What setup_node.sh installs, under ~/interplay of each machine.
SOURCES = (
    *("study", "trainables", "analysis", "cluster"),
    *("pyproject.toml", "constraints.txt", "README.md", "LICENSE"),
)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SECRET = re.compile(r"AKIA[0-9A-Z]{16}|(SECRET_ACCESS_KEY|PASSWORD|AUTH_TOKEN)=[^\s$]", re.IGNORECASE)


def check_all(report: Report) -> None:
    """Apply the rules that hold for any provider."""
    for path, line in report.file.repeated:
        report.error(
            path, f"this key is written again on line {line}, and the last one silently wins; take one out"
        )
    _mounts(report)
    _token(report)
    _setup(report)
    _start(report)
    _secrets(report)


def check_local(report: Report) -> None:
    """Apply the rules for machines that are reached by SSH and never made."""
    provider = report.file.mapping("provider")
    for key in provider:
        if key not in LOCAL_PROVIDER:
            hint = near(str(key), LOCAL_PROVIDER) or "; take it out"
            report.error(("provider", key), f"Ray's code for such machines reads no `{key}`{hint}")
    if "storage" not in report.file.mapping("metadata"):
        report.error(
            ("metadata",),
            f"`storage` is missing, a folder or URI that all machines reach; {SETUP} reads it: add it",
        )
    for key, value in report.file.mapping("metadata").items():
        if PLACEHOLDER.search(str(value)):
            report.error(("metadata", key), f"`{key}` still is {value}; give your own")
    addresses = [provider.get("head_ip"), *report.file.sequence("provider", "worker_ips")]
    for index, address in enumerate(addresses):
        path: Path = ("provider", "worker_ips", index - 1) if index else ("provider", "head_ip")
        is_open = PLACEHOLDER.search(str(address)) is not None
        if is_open and str(address) not in str(report.file.mapping("metadata")):
            report.error(path, f"this address still is {address}; give your machine's")
        elif address is not None and not is_open and address in addresses[:index]:
            report.error(path, f"{address} is named twice, and one machine is one node; take one out")
    starts = [text for text in report.file.commands("head_start_ray_commands") if "ray start" in text]
    if starts and not any("--num-cpus=0" in text for text in starts):
        report.error(
            ("head_start_ray_commands",),
            "the head offers its CPUs to trials, which would starve the driver, Ray and MLflow; add --num-cpus=0 to "
            "its `ray start`",
        )
    if not report.file.get("auth", "ssh_user"):
        report.error(("auth",), "`ssh_user` is missing; name the user who logs in on every machine")
    key = report.file.get("auth", "ssh_private_key")
    if isinstance(key, str) and not FilePath(key).expanduser().is_file():
        report.error(
            ("auth", "ssh_private_key"), f"there is no key {key} here; name the private half of your SSH key"
        )


def check_pools(report: Report) -> None:
    """Check that each pool has its resource and its label, that the head takes no trial, and how far all may grow."""
    file = report.file
    types = "available_node_types"
    if file.head is not None:
        if file.get(types, file.head, "resources", "CPU") != 0:
            report.error(
                (types, file.head, "resources"),
                "the head offers its CPUs to trials, which would starve the driver, Ray and MLflow; write "
                "`resources: {CPU: 0, head: 1}`",
            )
        if file.get(types, file.head, "resources", "head") is None:
            report.error(
                (types, file.head, "resources"), "the resource `head` is missing; write `{CPU: 0, head: 1}`"
            )
        if file.get(types, file.head, "max_workers") not in (None, 0):
            report.error(
                (types, file.head, "max_workers"),
                "more heads would be started, as workers without CPUs; write 0",
            )
    for name in file.workers:
        _pool(report, name)
    counts = {name: file.get(types, name, "max_workers") for name in file.workers}
    most = file.document.get("max_workers")
    if isinstance(most, int):
        for name, count in counts.items():
            if isinstance(count, int) and count > most:
                report.error(
                    (types, name, "max_workers"),
                    f"`{name}` may have {count} machines and all workers together {most}; raise the top-level "
                    "`max_workers`, or lower this",
                )
        total = sum(count for count in counts.values() if isinstance(count, int))
        if total > most:
            report.notes.append(
                f"the pools may have {total} machines in sum and all workers together {most}, so not all at a time"
            )
    elif "max_workers" not in file.document and file.provider != "local":
        report.error(
            (),
            "`max_workers` is missing, and Ray would take 2 machines for all pools; give the sum you allow",
        )
    _idle(report)


def _pool(report: Report, name: str) -> None:
    file, here = report.file, ("available_node_types", name)
    resources, labels = file.mapping(*here, "resources"), file.mapping(*here, "labels")
    own = [key for key in resources if key not in ("CPU", "GPU", "memory", "object_store_memory")]
    label = labels.get("pool")
    if not own:
        report.error(
            (*here, "resources"),
            f"no resource marks this pool, so `resources.pool` of a spec cannot name it; write "
            f"`{{{label or name}: 1}}`",
        )
    elif label is None:
        report.error(here, f"the label of the pool is missing; write `labels: {{pool: {own[0]}}}`")
    elif label not in own:
        report.error(
            (*here, "labels", "pool"),
            f"the label says pool {label} and the resource {', '.join(own)}; a pool has both by one name",
        )
    what = prices().types.get(str(file.get(*here, "node_config", "InstanceType")))
    for key, has in () if what is None else (("CPU", what.cpus), ("GPU", what.gpus)):
        count = resources.get(key, 0)
        if isinstance(count, int) and count > has:
            report.error(
                (*here, "resources", key),
                f"`{key}` is {count} and the machine has {has}, so trials would share what each takes for its own; "
                "take this out: Ray fills it in",
            )
    market = file.get(*here, "node_config", "InstanceMarketOptions", "MarketType")
    if label == "spot" and market != "spot" and file.provider == "aws":
        report.error(
            (*here, "node_config"),
            "the pool is called spot and asks for machines on demand, at their full price; add "
            "`InstanceMarketOptions: {MarketType: spot}`",
        )
    if label == "on_demand" and market == "spot":
        report.error(
            (*here, "node_config", "InstanceMarketOptions"),
            "the pool is called on_demand and asks for spot machines, which may be taken away; take this out",
        )
    least, most = file.get(*here, "min_workers") or 0, file.get(*here, "max_workers")
    if isinstance(least, int) and least > 0:
        report.warning(
            (*here, "min_workers"),
            f"{least} of these machines run, and cost, even while there is nothing to do",
        )
    if most is None:
        report.error(
            here, "`max_workers` is missing, so this pool may take all machines there may be; give its own"
        )
    elif most == 0:
        report.warning((*here, "max_workers"), "this pool never has a machine")
    for key, count in (("min_workers", least), ("max_workers", most)):
        if isinstance(count, int) and count < 0:
            report.error((*here, key), f"`{key}` is {count}; give 0 or more")


def _idle(report: Report) -> None:
    minutes = report.file.document.get("idle_timeout_minutes")
    if minutes is None:
        report.warning((), "`idle_timeout_minutes` is missing; Ray's own is 5 minutes, say so to be sure")
    elif isinstance(minutes, int | float) and minutes > LONG_IDLE_MINUTES:
        report.warning(
            ("idle_timeout_minutes",),
            f"idle machines are kept, and cost, for {minutes:g} minutes; 5 to 15 will do",
        )
    elif isinstance(minutes, int | float) and minutes < SHORT_IDLE_MINUTES:
        report.error(
            ("idle_timeout_minutes",),
            "machines would be ended as soon as they pause between two cells; take 5",
        )


def _mounts(report: Report) -> None:
    file = report.file
    for remote, local in file.mapping("file_mounts").items():
        path = ("file_mounts", remote)
        home = re.match(r"/home/([^/]+)/", str(remote))
        if home and home[1] != file.user:
            report.error(
                path, f"this is the home of {home[1]}, and `auth.ssh_user` is {file.user}; write it as ~/…"
            )
        if not isinstance(local, str):
            report.error(path, f"the source is {local!r}; name a file or folder here")
        elif str(remote) != TOKEN and not FilePath(local).expanduser().exists():
            where = "this place" if local.startswith(("/", "~")) else "this folder"
            report.error(
                path, f"there is no {local} in {where}; run from the top of the repository, or mend the path"
            )
    whole = next((key for key, local in file.mapping("file_mounts").items() if _is_checkout(local)), None)
    if whole is not None:
        report.warning(
            ("file_mounts", whole),
            "the whole checkout is mounted: Ray reads all of it, results and environments too, and restarts under a "
            "running study at the next `ray up` where any of it has changed (ray#20878); mount the folders one by one",
        )
    for key in ("rsync_exclude", "rsync_filter", "cluster_synced_files"):
        for index, item in enumerate(file.sequence(key)):
            if not isinstance(item, str):
                report.error((key, index), f"this is {item!r}, and `{key}` is a list of texts")
    for name in SOURCES:
        if file.local(f"~/interplay/{name}") is None:
            report.error(
                ("file_mounts",),
                f"~/interplay/{name} is missing, which {SETUP} installs from; add `~/interplay/{name}: {name}`",
            )
    if not any(str(item).endswith("interplay-cluster.sh") for item in file.sequence("cluster_synced_files")):
        report.error(
            ("cluster_synced_files",),
            "workers would not know the storage that all share; write `cluster_synced_files: "
            f"[~/interplay-cluster.sh]`, which {SETUP} makes on the head",
        )
    if ".gitignore" not in file.sequence("rsync_filter"):
        report.error(
            ("rsync_filter",),
            "`.gitignore` is missing from `rsync_filter`, so results and environments would be copied to every "
            "machine; write `rsync_filter: [.gitignore]`",
        )


def _is_checkout(local: object) -> bool:
    folder = FilePath(str(local)).expanduser()
    return any((folder / name).exists() for name in (".git", ".venv", "results"))


def _token(report: Report) -> None:
    path = report.file.token
    if path is None:
        report.error(
            ("file_mounts",),
            "no token is mounted, so whoever reaches a port of the machines can run programs there; add "
            f"`{TOKEN}: ~/.ray/interplay-token`",
        )
        return
    place = ("file_mounts", TOKEN)
    make = f"`interplay cluster token {report.file.name}`"
    if not path.is_file():
        report.error(place, f"the token {path} is not there yet; make it: {make}")
        return
    mode = open_to_others(path)
    if mode:
        report.error(place, f"others can read the token {path} (its mode is {mode}); mend it: {make}")
    if not path.stat().st_size:
        report.error(place, f"the token {path} is empty; delete it and make one: {make}")


def _setup(report: Report) -> None:
    file = report.file
    scripts = [
        (key, text) for key in ("setup_commands", "head_start_ray_commands") for text in file.commands(key)
    ]
    if not any(SETUP in text for key, text in scripts if key == "setup_commands"):
        report.error(
            ("setup_commands",),
            f"`setup_commands` does not run {SETUP}, which installs the pinned environment on each machine; add "
            f"`bash ~/interplay/cluster/{SETUP}`",
        )
    if not any("start_mlflow.sh" in text for _, text in scripts):
        report.warning(
            ("head_start_ray_commands",),
            "start_mlflow.sh is not run, so there is no tracking server on the head",
        )
    for key, text in scripts:
        host = re.search(r"MLFLOW_HOST=[\"']?([^\s;\"']+)", text)
        if host and host[1] not in LOOPBACK:
            report.warning(
                (key,),
                f"MLflow listens on {host[1]}, so whoever your security group lets in can read and write it; leave "
                "it on loopback and come by a tunnel, or set a password (cluster/README.md)",
            )
        for script in re.findall(r"(?:~|\$HOME|/home/\w+|/root)/[\w./-]+\.sh", text):
            local = file.local(script)
            if local is None:
                report.error(
                    (key,), f"{script} is run and no `file_mounts` brings it to the machine; mount its folder"
                )
            elif not local.is_file() and local.parent.exists():
                report.error((key,), f"{script} is run and there is no {local} here; mend the name")


def _start(report: Report) -> None:
    file = report.file
    for key, is_head in (("head_start_ray_commands", True), ("worker_start_ray_commands", False)):
        starts = [text for text in file.commands(key) if re.search(r"\bray start\b", text)]
        if not starts:
            report.error(
                (key,),
                f"`{key}` does not run `ray start`, so Ray's own command would, without a token; add it",
            )
        for text in starts:
            place = (key, file.commands(key).index(text))
            if "RAY_AUTH_MODE=token" not in text and not _sources_token(report, text):
                report.error(
                    place,
                    "`ray start` runs without `RAY_AUTH_MODE=token`, so anybody who reaches the port can run programs; "
                    "write `export RAY_AUTH_MODE=token;` before it, in the same command",
                )
            if is_head:
                _head_start(report, text, place)
            elif "RAY_HEAD_IP" not in text:
                report.error(place, "workers join by `--address=$RAY_HEAD_IP:6379`; add it to `ray start`")


def _head_start(report: Report, text: str, place: tuple[str, int]) -> None:
    host = re.search(r"--dashboard-host[= ](\S+)", text)
    if host and host[1].strip("'\"") not in LOOPBACK:
        report.error(
            place,
            f"the dashboard listens on {host[1]}, and it takes jobs; write --dashboard-host=127.0.0.1 and reach it by "
            "`ray dashboard`",
        )
    if "--head" not in text:
        report.error(place, "the head's `ray start` lacks --head; add it")
    if "--autoscaling-config" not in text and report.file.provider != "local":
        report.error(
            place,
            "no worker would ever be started: add --autoscaling-config=~/ray_bootstrap_config.yaml to `ray start`",
        )


def _sources_token(report: Report, text: str) -> bool:
    """Whether a script that a command reads in, and that is here, sets the mode."""
    for script in re.findall(r"(?:source|\.)\s+(\S+?\.sh)\b", text):
        local = report.file.local(script)
        if (
            local is not None
            and local.is_file()
            and "RAY_AUTH_MODE=token" in local.read_text(encoding="utf-8")
        ):
            return True
    return False


def _secrets(report: Report) -> None:
    for key, value in report.file.document.items():
        if _SECRET.search(str(value)):
            report.error(
                (key,),
                "a password, token or key of AWS stands here, and this file is copied to every machine; take it out, "
                "and let the machines have it by their instance profile or a file of mode 0600",
            )
