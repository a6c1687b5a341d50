"""The end of the process of a command."""

import subprocess
import sys

import pytest

#: Runs the command with what a library does at its exit, and a short limit.
PROGRAM = """
import atexit, ctypes, os, sys, threading, time
import study.__main__ as program
program.END_SECONDS = {seconds}
{before}
def main():
    {library}
    print("the report")
    sys.exit({status})
program.main = main
program.run()
"""


def ended(library, status, seconds=1.0, before=""):
    program = PROGRAM.format(library=library, status=status, seconds=seconds, before=before)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("status", "code"), [("0", 0), ("None", 0), ("1", 1), ("2", 2), ("130", 130), ("'x'", 1)]
)
def test_the_status_is_that_of_the_command(status, code):
    done = ended("pass", status, seconds=100)
    assert (done.returncode, done.stdout) == (code, "the report\n")


@pytest.mark.parametrize(
    "library",
    [
        "atexit.register(time.sleep, 1000)",
        "threading.Thread(target=time.sleep, args=(1000,)).start()",
    ],
)
def test_a_library_that_waits_at_the_exit_changes_neither_the_end_nor_the_status(library):
    done = ended(library, 0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the report\n", "")


def test_a_library_that_waits_with_the_interpreters_lock_is_named():
    """As Arrow does; no thread of Python runs meanwhile."""
    done = ended("atexit.register(ctypes.PyDLL(None).sleep, 1000)", 0)
    assert (done.returncode, done.stdout) == (1, "the report\n")
    assert "Timeout" in done.stderr


def test_the_handler_in_which_arrow_can_wait_for_ever_is_left_out():
    """Arrow registers it when it is imported, which the command does first."""
    before = (
        "def import_arrow():\n"
        "    import pyarrow.fs\n"
        "    atexit.unregister(pyarrow.fs.ensure_s3_finalized)\n"
        "    pyarrow.fs.ensure_s3_finalized = lambda: ctypes.PyDLL(None).sleep(1000)\n"
        "    atexit.register(pyarrow.fs.ensure_s3_finalized)"
    )
    done = ended("import_arrow()", 1, seconds=20, before=before)
    assert (done.returncode, done.stdout, done.stderr) == (1, "the report\n", "")


def test_handlers_of_libraries_run_before_the_end():
    done = ended("atexit.register(print, 'late')", 0)
    assert (done.returncode, done.stdout) == (0, "the report\nlate\n")


def test_an_exception_that_nobody_handles_keeps_its_traceback():
    done = ended("raise RuntimeError('a defect')", 0)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("RuntimeError: a defect\n")
