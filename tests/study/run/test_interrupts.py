import signal
import sys
import weakref

import pytest

from study.run.interrupts import remembered_interrupt


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
    with remembered_interrupt() as check:
        check()
        lose_an_interrupt()
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_an_interrupt_anywhere_else_is_raised_at_once():
    with remembered_interrupt(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_else_goes_wrong_in_a_callback_is_still_told(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with remembered_interrupt():
        thing = Thing()
        reference = weakref.ref(thing, lambda _: 1 / 0)
        del thing
    assert reference() is None
    assert [entry.exc_type for entry in told] == [ZeroDivisionError]


def test_library_defect_an_interrupt_in_a_callback_of_a_weak_reference_is_ignored(monkeypatch):
    """Fails when Python lets it through, and `study.run.interrupts` is no longer needed."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    lose_an_interrupt()
