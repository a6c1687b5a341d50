import os
import signal
import socket
import threading
import time
from datetime import timedelta

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from benchmarks.kernels import Counting
from tests.ranks import RankError, Ranks
from tests.trainables.train import golden
from trainables.cell import Recipe, Shape
from trainables.layout import Layout
from trainables.model.build import build_model
from trainables.ranks import process_group as world
from trainables.ranks.process_group import RankInfo, Rendezvous, device_name, join, leave
from trainables.record import Keep
from trainables.train.engine import build_engine, close_engine
from trainables.train.loop import train

# Ranks of a gang: each function is called in every one.


def sum_of_ranks(rank_info, rendezvous):
    join(rank_info, rendezvous)
    total = torch.tensor(float(rank_info.rank + 1))
    dist.all_reduce(total)
    leave()
    return float(total)


def listening(rank_info, rendezvous):
    """Addresses of both ends of every socket of this process, in a gang with an engine."""
    join(rank_info, rendezvous)
    recipe = Recipe(steps=2, batch=2, context=4)
    shape = Shape(depth=1, width=8, heads=2)
    model = build_model(shape, recipe, 5, 0)
    engine = build_engine(model, shape, recipe, 1e-3, Layout(tensor_parallel=2, zero=1))
    tokens = torch.zeros(2, 4, dtype=torch.long)
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    dist.barrier()
    found = psutil.Process().net_connections("inet")
    dist.barrier()
    engine.destroy()
    leave()
    ends = {c.laddr.ip for c in found} | {c.raddr.ip for c in found if c.raddr}
    return {end.removeprefix("::ffff:") for end in ends}


def rank_0_only(rank_info, rendezvous):
    if rank_info.rank == 0:
        join(rank_info, rendezvous)


def last_hangs(seconds, rank_info, rendezvous):
    """The last rank sleeps, and another tells how long it waited in a group of DeepSpeed's, and what it was told."""
    join(rank_info, rendezvous)
    import deepspeed.comm

    group = deepspeed.comm.new_group(range(rank_info.size))
    dist.all_reduce(torch.zeros(1), group=group)
    if rank_info.rank == rank_info.size - 1:
        time.sleep(seconds)
        return None
    start = time.monotonic()
    try:
        dist.all_reduce(torch.zeros(1), group=group)
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    return None


def last_dies(folder, rank_info, rendezvous):
    join(rank_info, rendezvous)
    dist.barrier()
    if rank_info.rank == rank_info.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        dist.all_reduce(torch.zeros(1))
    except RuntimeError as error:
        (folder / str(rank_info.rank)).write_text(f"{time.monotonic() - start}\n{error}")


@pytest.mark.slow
def test_a_gang_listens_on_loopback_only(ranks):
    assert ranks.gang(2, listening) == [{"127.0.0.1"}, {"127.0.0.1"}]


@pytest.mark.slow
def test_two_gangs_at_once_do_not_meet_each_other():
    answers = {}

    def run(name):
        with Ranks(2) as pool:
            answers[name] = [pool.gang(2, sum_of_ranks) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {"one": [[3.0, 3.0]] * 5, "other": [[3.0, 3.0]] * 5}


@pytest.mark.extended
def test_a_rank_that_never_comes_ends_the_meeting_at_the_timeout(ranks):
    start = time.monotonic()
    with pytest.raises(RankError, match=r"wait timeout after 4000ms") as error:
        ranks.gang(2, rank_0_only, timeout=4)
    assert 3.5 < time.monotonic() - start < 30
    assert "rank 1" not in str(error.value).splitlines()[0]
    assert ranks.gang(2, sum_of_ranks) == [3.0, 3.0], "the pool goes on"


@pytest.mark.extended
def test_a_rank_that_hangs_ends_the_others_at_the_timeout_also_in_deepspeeds_groups(ranks):
    waited, said = ranks.gang(2, last_hangs, 12, timeout=5)[0]
    assert 4 < waited < 10
    assert "4000ms" in said or "5000ms" in said or "imed out" in said


@pytest.mark.slow
def test_a_peer_that_dies_is_noticed_at_once(tmp_path):
    with Ranks(2) as pool:
        with pytest.raises(RankError, match="rank 1 died with exit code -9"):
            pool.gang(2, last_dies, tmp_path, timeout=60)
        waited, said = (tmp_path / "0").read_text().split("\n", 1)
        assert float(waited) < 5
        assert "peer" in said
        assert pool.gang(2, sum_of_ranks) == [3.0, 3.0], "a pool starts anew after a death"


def test_library_defect_a_new_group_has_not_the_timeout_of_the_world(monkeypatch):
    """When this fails, `join` need not change torch's default."""
    join()
    leave()
    join()
    world_timeout = timedelta(seconds=world.TIMEOUT_SECONDS)

    def timeout(group):
        return group._get_backend(torch.device("cpu")).options._timeout

    assert timeout(dist.group.WORLD) == world_timeout
    assert timeout(dist.new_group([0])) == world_timeout
    monkeypatch.setattr(c10d, "default_pg_timeout", timedelta(minutes=30))
    assert timeout(dist.new_group([0])) == timedelta(minutes=30)


def test_ranks_of_several_machines_use_the_interface_of_their_network(monkeypatch):
    """Not the one the host's name resolves to, which on Debian is 127.0.1.1."""
    own = {
        entry.address: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and not name.startswith("lo")
    }
    if not own:
        pytest.skip("this machine has no network but loopback")
    for address, name in own.items():
        assert world.interface_to(address) == name
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
        world._choose_interface(RankInfo(0, 2, address, 1))
        assert os.environ["GLOO_SOCKET_IFNAME"] == name
        assert os.environ["NCCL_SOCKET_IFNAME"] == f"={name}"
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
        world._choose_interface(RankInfo(0, 2, address, 1))
        assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0", "what the machine's owner says is kept"
    with pytest.raises(RuntimeError, match=r"no interface of this machine has the address 127\.0\.0\.1"):
        world.interface_to("127.0.0.1")


def test_a_meeting_holds_a_port_of_its_own_on_loopback():
    one, other = Rendezvous(), Rendezvous()
    assert one.port != other.port
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", one.port))
    for meeting in (one, other):
        os.close(meeting.hand_over())


def test_rank_0_needs_its_meeting():
    with pytest.raises(ValueError, match="needs the rendezvous"):
        join(RankInfo(0, 2, "127.0.0.1", 1))
    join()
    assert dist.get_world_size() == 1


def test_a_process_alone_keeps_its_group_and_leaves_it_once():
    join()
    kept = dist.group.WORLD
    join()
    assert dist.group.WORLD is kept
    leave()
    leave()
    assert not dist.is_initialized()
    join()


@pytest.mark.parametrize(("local", "index"), [(None, 0), ("0", 0), ("3", 3), ("5", 1)])
def test_the_device_is_the_launchers_local_rank_among_the_gpus_there_are(monkeypatch, local, index):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    if local is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local)
    assert world.device() == torch.device("cuda", index)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert world.device() == torch.device("cpu")


@pytest.mark.parametrize("is_gang", [False, True])
@pytest.mark.parametrize("is_launched", [False, True])
@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_process_alone_has_gloo_and_ranks_on_gpus_have_nccl(monkeypatch, is_gang, is_launched, has_gpu):
    monkeypatch.delenv(world.BACKEND, raising=False)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1") if is_launched else monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    rank_info = RankInfo(0, 2, "127.0.0.1", 1) if is_gang else None
    assert world._backend(rank_info) == ("nccl" if has_gpu and (is_gang or is_launched) else "gloo")
    monkeypatch.setenv(world.BACKEND, "ucc")
    assert world._backend(rank_info) == "ucc"


def collectives(counting):
    return {name: number for name, number in counting.counts.items() if name.startswith("c10d::")}


def test_a_whole_cell_of_one_rank_has_no_collective(tmp_path):
    """Without checkpoints: DeepSpeed has two barriers and two sums for each."""
    with Counting() as counting:
        result = train(
            golden.cell(),
            data_root=tmp_path,
            weights=Keep(tmp_path / "weights"),
        )
    assert result.status == "done"
    assert counting.counts["aten::_fused_adamw_"] >= 30
    assert not collectives(counting)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_an_engine_of_one_rank_broadcasts_nothing_while_it_is_built(zero):
    import deepspeed.comm

    join()
    shape, recipe = Shape(depth=1, width=8, heads=2), Recipe(steps=4, batch=2, context=8)
    with Counting() as counting:
        engine = build_engine(build_model(shape, recipe, 5, 0), shape, recipe, 1e-3, Layout(zero=zero))
    close_engine(engine)
    assert "c10d::broadcast_" not in collectives(counting)
    assert deepspeed.comm.broadcast is deepspeed.comm.comm.broadcast


@pytest.mark.parametrize("zero", [1, 3])
def test_one_rank_trains_the_same_at_other_stages(tmp_path, zero):
    plain = train(golden.cell(), data_root=tmp_path, evaluations=1)
    with Counting() as counting:
        other = train(golden.cell(), data_root=tmp_path, layout=Layout(zero=zero), evaluations=1)
    assert collectives(counting), "DeepSpeed reduces gradients with itself"
    assert other.loss == pytest.approx(plain.loss, rel=1e-5)


def test_library_defect_deepspeed_broadcasts_the_parameters_of_one_rank_to_itself():
    """When this fails, `no_broadcast_to_itself` can go."""
    import deepspeed

    join()
    model = build_model(Shape(depth=1, width=8, heads=2), Recipe(steps=4, batch=2, context=8), 5, 0)
    config = {"train_micro_batch_size_per_gpu": 2, "steps_per_print": 10**9}
    with Counting() as counting:
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters()),
            config=config,
            dist_init_required=False,
        )
    assert collectives(counting) == {"c10d::broadcast_": len(list(model.parameters()))}
    close_engine(engine)


def test_a_row_names_the_gpu_of_its_own_rank(monkeypatch):
    """A rank sees all GPUs of its machine, which may be of several kinds."""
    assert device_name() == "cpu"
    kinds = {0: "NVIDIA L4", 1: "NVIDIA A10G"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(kinds))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: kinds[place.index])
    for index, name in kinds.items():
        monkeypatch.setenv("LOCAL_RANK", str(index))
        assert device_name() == name
