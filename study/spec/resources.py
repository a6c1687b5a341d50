"""The sections `resources` and `tracking`: devices, storage, estimates, and the trackers."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticKnownError

from study.spec.devices import DEVICES, SLICE, local_device
from study.spec.section import Section, Width, distinct
from trainables.train.latency import Measure

Degree = Annotated[int, Field(ge=1, le=10_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
#: Names of query parameters that hold a secret: `password`, `sslpassword`, `access_token`, `api_key`, …
SECRET = re.compile(r"passw|pwd|token|secret|credential|(api|access|account|private).?key", re.IGNORECASE)


def _check_no_secret(key: str, address: SplitResult, in_host: object, variables: str) -> None:
    """Raise a `ValueError` for an address with a secret: it would leak, as a spec is written to disk and to MLflow."""
    names = [name for name, _ in parse_qsl(address.query, keep_blank_values=True) if SECRET.search(name)]
    if names or in_host:
        where = f" (`{names[0]}`)" if names else ""
        raise ValueError(
            f"`{key}` holds a password or key{where}, and specs are kept as files; take it out and set {variables} in "
            "the environment of every machine"
        )


def _known_device(name: str) -> str:
    if name == "auto":
        return local_device()
    try:
        return DEVICES[name].name
    except KeyError:
        raise PydanticKnownError("literal_error", {"expected": ", ".join(("auto", *DEVICES))}) from None


class MinWidth(Section):
    """A degree by the width of the shape."""

    min_width: dict[Degree, Annotated[Width, Field(strict=True)]] = Field(min_length=1)
    """least width of each degree, such as {2: 2048, 4: 8192}; narrower shapes have 1"""

    def degree(self, width: int) -> int:
        """Return the largest degree that a width allows."""
        return max((degree for degree, least in self.min_width.items() if width >= least), default=1)


#: How many ranks share something of a cell.
DegreeRule = Annotated[
    Annotated[Literal["auto"] | Degree, Tag("one")] | Annotated[MinWidth, Tag("table")],
    Discriminator(lambda value: "table" if isinstance(value, Mapping | MinWidth) else "one"),
]


class ResourcesSection(Section):
    """Devices of a trial, how a cell is spread over ranks, storage, and assumptions of the estimates."""

    device: Annotated[str, AfterValidator(_known_device)] = Field(
        default_factory=local_device,
        json_schema_extra={"anyOf": [{"enum": ["auto", *DEVICES]}, {"pattern": f"-{SLICE}$"}]},
    )
    """what a trial trains on, which sets memory and speed in the plan; auto (the default) is the GPU of this machine,
    or its CPU. A MIG slice has its card's name and its size, such as h100-80gb-1g.10gb; auto takes the slices whose ids
    CUDA_VISIBLE_DEVICES has"""
    slots: Literal["auto"] | Count = "auto"
    """devices in use at a time; a cell takes one per rank. auto is the number of cores or GPUs here, or of ranks that
    the cluster can hold"""
    pool: str = Field(default="any", min_length=1)
    """machines of a cluster: a resource that marks them, such as spot, on_demand or wide, or any; for device cpu any is
    the pool without GPUs"""
    # Ray counts in 1/10,000.
    cpus_per_trial: float = Field(default=1, ge=1e-4, le=1e6)
    """CPU cores of each rank of a trial"""
    trials_per_gpu: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = 1
    """trials of one rank that share a GPU, for cells too small to fill it; auto is as many as the memory and the time
    of the largest cell allow, at most 8"""
    tensor_parallel: DegreeRule = "auto"
    """ranks that share each matrix of a cell; auto is the fewest whose memory fits the device, or a number, or
    {min_width: {2: 2048, 4: 8192}}"""
    data_parallel: DegreeRule = "auto"
    """groups of ranks that share each batch; auto takes them before tensor parallelism where one device holds the
    weights"""
    zero: Literal["auto", 0, 1, 2, 3] = "auto"
    """what data-parallel groups share: optimizer (1), gradients (2), weights (3); auto is the cheapest that is correct:
    0 for one rank, 1 for several"""
    micro_batch: Literal["auto"] | Count = "auto"
    """sequences a group works on at once; auto is the most that fit the device, on a GPU up to 65,536 tokens"""
    activation_checkpointing: Literal["never", "always", "auto"] = "never"
    """recompute the activations inside a layer in backward: a third more work for less memory; auto is only if a cell
    does not fit without"""
    shard_vocabulary: Literal["never", "always", "auto"] = "auto"
    """tensor-parallel ranks also share the embedding and the logits; auto does so but for tasks, whose accuracy is read
    off whole logits"""
    compile: Literal["never", "always", "auto"] = "auto"
    """compile the layers of cells without dropout, tensor parallelism and ZeRO 3, and the loss of more than 2^20 logits
    of a vocabulary that is not shared; auto is on a GPU, for cells whose steps take more than 5 times what compiling
    does (a minute, unless that was measured)"""
    gang_timeout_seconds: Seconds = 300
    """how long ranks wait for one another before the trial fails"""
    storage: str = Field(default="auto", min_length=1)
    """for what all machines share: packed data, checkpoints, final weights, a copy of the results. auto is
    INTERPLAY_STORAGE, else the results folder; or a folder or URI that every machine reaches, such as
    s3://BUCKET/FOLDER"""
    checkpoint_every_seconds: Seconds | Literal["auto"] = "auto"
    """most work lost if a machine is lost; auto is 30, or 20 times what the last checkpoint took if that is more"""
    capacity_timeout_seconds: Seconds = 600
    """how long a pool of a cluster may start no machine before a warning"""
    max_retries: int = Field(default=2, ge=0, le=10_000)
    """new attempts from the same checkpoint after a lost process or machine"""
    evaluations: int = Field(default=4, ge=1, le=100_000)
    """evaluations during a cell, the last one at its end"""
    keep_weights: Literal["final", "none"] = "final"
    """final: the weights of each cell that is done stay in the results folder, for `interplay export`"""
    measure: Annotated[tuple[Measure, ...], AfterValidator(distinct)] = ()
    """what is measured of each shape after the last cell, alone on the device, into costs.csv: train (tokens per
    second), prefill and decode (milliseconds of the exported model), which `interplay cost` measures too; by default
    nothing"""
    price_per_hour: float | None = Field(default=None, ge=0, le=1e9)
    """dollars per hour of one device; by default that of a GPU at AWS, on demand"""
    utilisation: float | None = Field(default=None, ge=1e-6, le=1)
    """share of the device's peak that plans assume, instead of the built-in one"""

    @property
    def gpus_per_trial(self) -> float:
        """GPUs of each rank of a trial: 0 on a CPU, else 1 or the part of a trial that shares one."""
        # Ray counts in 1/10,000.
        return math.floor(10_000 / self.sharing) / 10_000 if DEVICES[self.device].is_gpu else 0

    @property
    def sharing(self) -> int:
        """Trials that share a GPU. `auto` counts as 1 until a plan has chosen the number."""
        return 1 if self.trials_per_gpu == "auto" else self.trials_per_gpu

    @model_validator(mode="after")
    def _shared_by_trials_of_one_rank(self) -> Self:
        degrees = [
            name for name in ("tensor_parallel", "data_parallel") if getattr(self, name) not in ("auto", 1)
        ]
        if self.trials_per_gpu != 1 and degrees:
            raise ValueError(
                f"`trials_per_gpu` is {self.trials_per_gpu}, and `{degrees[0]}` gives a cell several ranks, of which "
                "NCCL takes one per GPU; leave one of the two out"
            )
        if DEVICES[self.device].is_slice and degrees:
            raise ValueError(
                f"`device` {self.device} is a slice of a GPU, and `{degrees[0]}` gives a cell several ranks, but "
                f"slices do not reach one another; leave `{degrees[0]}` out, or take whole GPUs"
            )
        return self

    @model_validator(mode="after")
    def _no_secret(self) -> Self:
        address = urlsplit(self.storage)
        variables = "it (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
        _check_no_secret("storage", address, "@" in address.netloc, variables)
        return self


class WandbSection(Section):
    """Where Weights & Biases gets the rows of a study whose `tracking.also` names it."""

    project: str | None = Field(default=None, pattern=r"^[^/\\#?%:]+$", max_length=128)
    """W&B project; by default the MLflow experiment. The study is a group of runs in it"""
    entity: str | None = Field(default=None, min_length=1)
    """user or team; by default that of the API key"""
    mode: Literal["offline", "online"] = "offline"
    """offline: runs are folders that `wandb sync` sends; online: they are sent during the study, with the API key of
    `wandb login` or WANDB_API_KEY"""


class TrackingSection(Section):
    """The MLflow store of the study, and the trackers that get a copy of its rows beside it."""

    uri: str = Field(default="auto", min_length=1)
    """auto is SQLite in the results folder; or an MLflow URI"""
    experiment: str | None = Field(default=None, min_length=1)
    """MLflow experiment; by default the name"""
    also: Annotated[tuple[Literal["tensorboard", "wandb"], ...], AfterValidator(distinct)] = ()
    """trackers that get the same curves and values, in the folder of the study: tensorboard, wandb (needs the extra
    wandb); by default none"""
    wandb: WandbSection | None = None
    """where W&B gets them; by default offline"""

    @model_validator(mode="after")
    def _wandb_is_used(self) -> Self:
        if self.wandb is not None and "wandb" not in self.also:
            names = ", ".join([*self.also, "wandb"])
            raise ValueError(
                f"`wandb` is given, and `also` does not name it, so that nothing goes to W&B; write `also: [{names}]`, "
                "or `wandb: null`"
            )
        return self

    @model_validator(mode="after")
    def _usable_and_no_secret(self) -> Self:
        try:
            address = urlsplit(self.uri)
            _ = address.port
            is_whole = bool(address.hostname) or address.scheme not in ("http", "https")
        except ValueError:
            is_whole = False
        if not is_whole:
            raise ValueError(
                "`uri` is not an address with a host and a port from 0 to 65535; write it as http://host:5000"
            )
        variables = (
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN; PGPASSWORD for a "
            "database)"
        )
        _check_no_secret("uri", address, address.password, variables)
        return self
