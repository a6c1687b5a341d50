"""The process group a cell is trained in: alone, as a rank of a gang, or where a launcher put this process."""

import importlib
import logging
import os
import socket
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # exported without saying so

#: A lost or hanging peer must end a collective in minutes; torch's default is half an hour.
TIMEOUT_SECONDS = 300.0
#: Names the interface that gloo listens on.
GLOO = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class RankInfo:
    """The place of this process in a gang, and where rank 0 waits for the others."""

    rank: int
    size: int
    address: str
    port: int
    timeout: float = TIMEOUT_SECONDS
    """Seconds a collective, or the meeting itself, waits for a rank that does not come."""


class Rendezvous:
    """A port of rank 0's own, held from before the others are told of it, so that nobody else can take it."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.address = address
        self._socket = socket.create_server((address, 0))
        self.port: int = self._socket.getsockname()[1]

    def rank_info(self, rank: int, size: int, timeout: float = TIMEOUT_SECONDS) -> RankInfo:
        """The place of a rank at this meeting."""
        return RankInfo(rank, size, self.address, self.port, timeout)

    def hand_over(self) -> int:
        """The open socket's descriptor, from now on the store's to close."""
        return self._socket.detach()

    def close(self) -> None:
        """Give the port back where the meeting never took place."""
        self._socket.close()


def device() -> torch.device:
    """The device this process trains on: its own GPU, else the CPU.

    Ray shows each rank one GPU; a launcher such as torchrun shows all of them to all, and says which in LOCAL_RANK.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def rank() -> int:
    """Rank of this process in its group."""
    return dist.get_rank()


def timeout() -> float:
    """Seconds a collective of this process's group waits; torch's own default before the first `join`."""
    seconds: float = c10d.default_pg_timeout.total_seconds()
    return seconds


def join(rank_info: RankInfo | None = None, rendezvous: Rendezvous | None = None) -> None:
    """Make this process ready to build engines: quiet, one thread on CPU, in the process group it belongs to.

    Without a seat it is alone, unless a launcher (torchrun) has put it into a world. A group of one is kept from cell
    to cell; any other is made anew for each, so that no cell can meet what is left of another.

    One thread a rank and ranks side by side give the best throughput of a CPU: two threads cost twice the CPU seconds
    for a third less wall time at these widths.

    Args:
        rank_info: the place in a gang.
        rendezvous: on rank 0, the port the seats were given.

    Raises:
        RuntimeError: not all ranks came within the timeout (torch's own DistStoreError or its kin).
    """
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(device())
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch|deepspeed")
    import_deepspeed()
    if rank_info is None and dist.is_initialized() and (dist.get_world_size() == 1 or _launched()):
        return
    leave()
    os.environ.setdefault("LOCAL_RANK", "0")
    _choose_interface(rank_info)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    timeout = timedelta(seconds=rank_info.timeout if rank_info else TIMEOUT_SECONDS)
    # DeepSpeed makes its groups by `new_group` without a timeout, and torch then takes this default, not the world's: a
    # rank that hangs would hold the others of a tensor-parallel group for half an hour.
    vars(c10d).update(default_pg_timeout=timeout, default_pg_nccl_timeout=timeout)
    # Torch's watchdog would end this process for a peer that hangs, and the trial with it, before it can tell the
    # cause; told only to abort the communicator, it leaves the next collective to raise. Not tried on a GPU.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    if rank_info is not None:
        store = _store(rank_info, rendezvous)
        dist.init_process_group(
            backend, store=store, rank=rank_info.rank, world_size=rank_info.size, timeout=timeout
        )
    elif _launched():
        dist.init_process_group(backend, init_method="env://", timeout=timeout)
    else:
        # A store in memory: a process group of one needs no port, and DeepSpeed then asks no MPI for the world.
        store = HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    import_deepspeed().init_distributed(backend, timeout=timeout, verbose=False)


def leave() -> None:
    """Leave the process group, if there is one, and let DeepSpeed forget the degrees it was used at.

    A cell at degree 1 after one at degree 2 in the same process fails otherwise.
    """
    comm = importlib.import_module("deepspeed.comm.comm")
    if dist.is_initialized():
        if comm.cdb is None:
            dist.destroy_process_group()
        else:
            comm.destroy_process_group()
    # torch names a group by how many this process has made, and counts one that failed because a rank did not come: in
    # the next meeting this process and the others would wait for each other under different names.
    c10d._world.group_count = 0
    vars(comm)["cdb"] = None
    forget_degrees()


def forget_degrees() -> None:
    """Reset what DeepSpeed keeps of the last engine's tensor parallelism, and of its numbering, in its modules.

    Only for groups that are gone: those it still has would stay open, four descriptors and three threads each.
    """
    groups = importlib.import_module("deepspeed.utils.groups")
    vars(groups)["_release_process_group_references"]()
    importlib.import_module("deepspeed.module_inject").set_autotp_mode(False)
    vars(importlib.import_module("deepspeed.runtime.tensor_parallel.init_utils"))["_TP_MODEL_INIT_ARGS"] = (
        None
    )
    # ZeRO-3 numbers parameters and modules through a process's life, and its ranks compare the numbers: one that has
    # trained more engines than its peers (rank 0 of a gang of two, now in one of four) would be refused by them.
    offload = importlib.import_module("deepspeed.runtime.zero.parameter_offload").DeepSpeedZeRoOffload
    offload._register_deepspeed_module.__defaults__[0][0] = 0
    importlib.import_module("deepspeed.runtime.zero.partition_parameters").Init.param_id = 0


def import_deepspeed() -> Any:
    """Import DeepSpeed without letting it probe for, or build, any C++ kernel.

    On CPU the first `init_distributed` would compile `deepspeed_shm_comm` (40 to 100 s); only
    `inference_all_reduce` uses it. Naming every op unavailable also spares the probe's compiler subprocesses.
    """
    deepspeed = importlib.import_module("deepspeed")
    ops = importlib.import_module("deepspeed.ops")
    if "__compatible_ops__" not in vars(ops):
        all_ops = importlib.import_module("deepspeed.ops.op_builder.all_ops").ALL_OPS
        vars(ops)["__compatible_ops__"] = dict.fromkeys([*all_ops, "deepspeed_not_implemented"], False)
        deepspeed.utils.logger.setLevel(logging.ERROR)
    return deepspeed


def _launched() -> bool:
    """Whether a launcher such as torchrun has put this process into a world."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def _choose_interface(rank_info: RankInfo | None) -> None:
    """Have gloo and NCCL use the interface through which the ranks reach one another.

    Left alone, gloo listens on the address the host's name resolves to: on Debian's machines 127.0.1.1, where no other
    machine finds it. Ranks that all sit on this machine need no network at all.
    """
    if rank_info is not None and not rank_info.address.startswith("127."):
        if not os.environ.get(GLOO, "") or os.environ[GLOO].startswith("lo"):
            name = interface_to(rank_info.address)
            os.environ[GLOO] = name
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    elif GLOO not in os.environ and not _launched():
        loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        if loopback:
            os.environ[GLOO] = loopback[0]


def interface_to(address: str) -> str:
    """The name of this machine's interface from which an address of the ranks' network is reached.

    Raises:
        RuntimeError: no interface has the address packets to it would leave from.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing: it only makes the kernel choose a way
        own = probe.getsockname()[0]
    found = psutil.net_if_addrs()
    for name in found:
        if any(entry.address == own for entry in found[name]) and not name.startswith("lo"):
            return name
    raise RuntimeError(f"no interface of this machine has the address {own}, from which {address} is reached")


def _store(rank_info: RankInfo, rendezvous: Rendezvous | None) -> Any:
    timeout = timedelta(seconds=rank_info.timeout)
    if rank_info.rank:
        return TCPStore(rank_info.address, rank_info.port, rank_info.size, is_master=False, timeout=timeout)
    if rendezvous is None:
        raise ValueError("rank 0 holds the meeting's port; give the meeting to join()")
    return TCPStore(
        rank_info.address,
        rank_info.port,
        rank_info.size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=rendezvous.hand_over(),
    )
