import os
import pty
import signal
import sys
import threading
import weakref

import pytest

from study.run.interrupts import request_stop, stop_signals


class Thing:
    pass


def lose_an_interrupt():
    """Ctrl-C in the callback of a weak reference, where Python can raise nothing."""
    thing = Thing()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing
    assert reference() is None


def test_an_interrupt_lost_in_a_callback_is_raised_at_the_next_check(capsys):
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    with stop_signals(raises=True) as signals:
        signals.check()
        lose_an_interrupt()
        with pytest.raises(KeyboardInterrupt):
            signals.check()
    assert signal.getsignal(signal.SIGINT) is before
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_anywhere_else_is_raised_at_once(number):
    with stop_signals(raises=True), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_what_else_goes_wrong_in_a_callback_is_still_told(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with stop_signals(raises=True):
        thing = Thing()
        reference = weakref.ref(thing, lambda _: 1 / 0)
        del thing
    assert reference() is None
    assert [entry.exc_type for entry in told] == [ZeroDivisionError]


def test_library_defect_an_interrupt_in_a_callback_of_a_weak_reference_is_ignored(monkeypatch):
    """Fails when Python lets it through, and `study.run.interrupts` is no longer needed."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    lose_an_interrupt()


def test_signals_that_ask_for_the_end_are_noted_and_a_second_ctrl_c_is_told_from_a_repeated_signal():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with stop_signals() as signals:
        assert not signals.came
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
            assert (signals.came, signals.again) == (True, False)
        signal.raise_signal(signal.SIGINT)
        assert signals.again
    assert {number: signal.getsignal(number) for number in before} == before
    with stop_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert (signals.came, signals.again) == (True, False)


def test_sighup_that_is_ignored_as_under_nohup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(raises=True) as signals:
            signal.raise_signal(signal.SIGHUP)
            assert not signals.came
    finally:
        signal.signal(signal.SIGHUP, before)


def test_after_a_closed_terminal_output_is_dropped():
    """A write to it raises an OSError, which would end the study before its cells have saved."""
    program = (
        "import os, signal\n"
        "from study.run.interrupts import request_stop, stop_signals\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # it is ignored where pytest runs under nohup
        "with stop_signals() as signals:\n"
        "    print('ready', flush=True)\n"
        "    while not signals.came:\n"
        "        signal.sigtimedwait([], 0.05)\n"
        "    print('dropped', flush=True)\n"
        "os._exit(7)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_the_study_of_a_thread_is_asked_to_end_and_no_other():
    """A library call in a server's thread: the server must go on."""
    began, asked, seen = threading.Event(), threading.Event(), []

    def study():
        with stop_signals(raises=True) as outer, stop_signals() as inner:
            seen.append(inner.came)
            began.set()
            assert asked.wait(20)
            seen.append(inner.came)
            with stop_signals() as later:
                seen.append(later.came)
            with pytest.raises(KeyboardInterrupt):
                outer.check()

    thread = threading.Thread(target=study)
    with stop_signals() as of_main:
        thread.start()
        assert began.wait(20)
        request_stop(thread)
        asked.set()
        thread.join(20)
        assert (seen, of_main.came) == ([False, True, True], False)
        request_stop(threading.current_thread())
        assert of_main.came
