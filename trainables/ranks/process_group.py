"""The process group of a cell: one process, a gang (the ranks of one trial), or the ranks of a launcher."""

import contextlib
import functools
import importlib
import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # exported without saying so

#: Timeout of collectives with a lost or hanging peer; torch's default is half an hour.
TIMEOUT_SECONDS = 300.0
#: Environment variable with the backend of `torch.distributed`, if not NCCL for several ranks on GPUs and gloo for all
#: others: two ranks that share a GPU need gloo.
BACKEND = "INTERPLAY_BACKEND"
#: Environment variable with the interface that gloo listens on.
GLOO = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process in a gang, the address of rank 0, and the timeout of a missing rank in seconds."""

    rank: int
    size: int
    address: str
    port: int
    timeout: float = TIMEOUT_SECONDS


class Rendezvous:
    """An open port of rank 0, reserved before the other ranks receive its number."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._socket = socket.create_server((address, 0))
        self.port: int = self._socket.getsockname()[1]

    def hand_over(self) -> int:
        """Return the socket's descriptor; the caller must close it."""
        return self._socket.detach()


def device() -> torch.device:
    """Return this process's GPU, else the CPU. A rank sees all GPUs of its machine, and LOCAL_RANK numbers its own."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def device_name() -> str:
    """Return the name of this process's GPU, of which a machine may have several kinds, or `cpu`."""
    place = device()
    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


def timeout() -> float:
    """Return the timeout of collectives in seconds; torch's default before the first `join`."""
    return float(c10d.default_pg_timeout.total_seconds())


def join(rank_info: RankInfo | None = None, rendezvous: Rendezvous | None = None) -> None:
    """Join the process group of a cell and prepare DeepSpeed.

    Without `rank_info` the process is alone, unless a launcher (torchrun) started it; its group is kept for the next
    cell. A process joins one gang in its life, because DeepSpeed keeps the degrees of the first. Rank 0 of a gang needs
    the rendezvous. If not all ranks join within the timeout, torch raises a RuntimeError.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(device())
    else:
        # Two threads would take twice the CPU seconds for a third less wall time.
        torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch|deepspeed")
    deepspeed = import_deepspeed()
    if rank_info is None and dist.is_initialized():
        return
    os.environ.setdefault("LOCAL_RANK", "0")
    _choose_interface(rank_info)
    backend = _backend(rank_info)
    timeout = timedelta(seconds=rank_info.timeout if rank_info else TIMEOUT_SECONDS)
    # DeepSpeed calls `new_group` without a timeout, and torch then uses this default of half an hour.
    vars(c10d).update(default_pg_timeout=timeout, default_pg_nccl_timeout=timeout)
    # By default torch's watchdog kills this process when a peer hangs. 2 aborts the communicator only, so that the
    # next collective raises and the cause is reported. Not tested on a GPU.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    if rank_info:
        store = _store(rank_info, rendezvous, timeout)
        rank, size = rank_info.rank, rank_info.size
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    elif _launched():
        dist.init_process_group(backend, init_method="env://", timeout=timeout)
    else:
        # A process group of one needs no port, and with it DeepSpeed does not query MPI.
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
    deepspeed.init_distributed(backend, timeout=timeout, verbose=False)


def first_collective() -> float:
    """Sum one number over all ranks, which connects them, and return the seconds on the slowest rank."""
    start = time.perf_counter()
    dist.all_reduce(torch.zeros((), device=device()))
    seconds = torch.tensor(time.perf_counter() - start, device=device())
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def leave() -> None:
    """Leave the process group, if any: a rank that exits with open connections counts as lost."""
    comm = import_deepspeed().comm
    if comm.is_initialized():
        comm.destroy_process_group()


def import_deepspeed() -> Any:
    """Import DeepSpeed with all its C++ kernels marked unavailable; on a CPU it would compile one for 40 to 100 s."""
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"  # or it prints on stdout that it found no other
    deepspeed = importlib.import_module("deepspeed")
    ops = importlib.import_module("deepspeed.ops")
    if "__compatible_ops__" not in vars(ops):
        all_ops = importlib.import_module("deepspeed.ops.op_builder.all_ops").ALL_OPS
        vars(ops)["__compatible_ops__"] = dict.fromkeys([*all_ops, "deepspeed_not_implemented"], False)
        deepspeed.utils.logger.setLevel(logging.ERROR)
    return deepspeed


@contextlib.contextmanager
def no_broadcast_to_itself() -> Iterator[None]:
    """Make DeepSpeed's `broadcast` do nothing here if this is the only rank: its engine sends itself each parameter."""
    comm = import_deepspeed().comm
    broadcast = comm.broadcast
    if dist.get_world_size() == 1:
        comm.broadcast = lambda *_arguments, **_options: None
    try:
        yield
    finally:
        comm.broadcast = broadcast


def _backend(rank_info: RankInfo | None) -> str:
    # NCCL opens a socket even for one rank, and takes 0.3 to 1 GB of the GPU. A process alone has no collectives at
    # ZeRO stage 0. At other stages, which only a user sets there, DeepSpeed reduces gradients with itself: gloo copies
    # them through the host, which is slow and right. Not tested on a GPU.
    is_alone = rank_info is None and not _launched()
    default = "gloo" if is_alone or not torch.cuda.is_available() else "nccl"
    return os.environ.get(BACKEND) or default


def _launched() -> bool:
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def _choose_interface(rank_info: RankInfo | None) -> None:
    # By default gloo listens on the address of the host's name: on Debian 127.0.1.1, which no other machine can reach.
    if rank_info is not None and not rank_info.address.startswith("127."):
        if os.environ.get(GLOO, "lo")[:2] in ("", "lo"):
            name = interface_to(rank_info.address)
            os.environ[GLOO] = name
            # Without the sign, `ens5` is a prefix, which `ens50` has too.
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
    elif GLOO not in os.environ and not _launched():
        loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        if loopback:
            os.environ[GLOO] = loopback[0]


def interface_to(address: str) -> str:
    """Return the name of this machine's interface that routes to an address, or raise a RuntimeError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing: the kernel only chooses a route
        source = probe.getsockname()[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == source for entry in entries) and not name.startswith("lo"):
            return name
    raise RuntimeError(
        f"no interface of this machine has the address {source}, from which {address} is reached"
    )


def _store(rank_info: RankInfo, rendezvous: Rendezvous | None, timeout: timedelta) -> Any:
    store = functools.partial(TCPStore, rank_info.address, rank_info.port, rank_info.size, timeout=timeout)
    if rank_info.rank:
        return store(is_master=False)
    if rendezvous is None:
        raise ValueError("rank 0 needs the rendezvous; pass it to join()")
    return store(is_master=True, wait_for_workers=False, master_listen_fd=rendezvous.hand_over())
