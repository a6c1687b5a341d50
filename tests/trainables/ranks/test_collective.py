import socket
import time

import pytest

from core.errors import InputError
from tests.ranks import RankError
from trainables.ranks import collective as module
from trainables.ranks.collective import PeerError, run_on_all_ranks
from trainables.ranks.process_group import join, leave


def sleep_on_rank_0(seconds, beats, rank_info=None, rendezvous=None):
    join(rank_info, rendezvous)
    usual, module._BEATS = module._BEATS, beats
    try:
        return run_on_all_ranks(lambda: time.sleep(seconds * (rank_info.rank == 0)) or rank_info.rank)
    finally:
        module._BEATS = usual
        leave()


def fail_on_rank_1(error, rank_info=None, rendezvous=None):
    join(rank_info, rendezvous)

    def work():
        if rank_info.rank == 1:
            raise error
        return rank_info.rank

    try:
        run_on_all_ranks(work)
    except Exception as raised:  # noqa: BLE001  # the test looks at it
        return type(raised), str(raised)
    finally:
        leave()


@pytest.mark.extended
def test_work_may_take_longer_than_a_collective(ranks):
    assert ranks.gang(2, sleep_on_rank_0, 4.0, module._BEATS, timeout=2.0) == [[0, 1], [0, 1]]
    # Without heartbeats it may not: this is what the thread is for.
    with pytest.raises(RankError, match="Timed out"):
        ranks.gang(2, sleep_on_rank_0, 4.0, 0.1, timeout=2.0)


def hang_on_rank_1(limit, rank_info=None, rendezvous=None):
    join(rank_info, rendezvous)
    try:
        run_on_all_ranks(lambda: time.sleep(30.0 * (rank_info.rank == 1)), "reading the checkpoint", limit)
    except RuntimeError as raised:
        return type(raised), str(raised)
    finally:
        leave()


@pytest.mark.extended
def test_work_that_does_not_end_is_named_by_all_at_the_limit(ranks):
    start = time.monotonic()
    told = ranks.gang(2, hang_on_rank_1, 3.0, timeout=2.0)
    assert time.monotonic() - start < 30.0
    assert [kind for kind, _ in told] == [PeerError, RuntimeError]
    assert told[0][1] == told[1][1]
    assert told[0][1].startswith(
        f"still reading the checkpoint after 3 s: rank 1 (host {socket.gethostname()})."
    )


@pytest.mark.slow
def test_an_error_of_one_rank_is_raised_by_all(ranks):
    wrong = InputError("the disk of rank 1 is no disk.")
    assert ranks.gang(2, fail_on_rank_1, wrong) == [(InputError, str(wrong))] * 2
    told, own = ranks.gang(2, fail_on_rank_1, KeyError("k"))
    assert told == (PeerError, "rank 1: KeyError: 'k'")
    assert own == (KeyError, "'k'")


def test_alone_the_error_is_the_works_own():
    join()
    assert run_on_all_ranks(lambda: 3) == [3]
    with pytest.raises(KeyError, match="k"):
        run_on_all_ranks(lambda: {}["k"])
