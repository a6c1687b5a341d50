"""The end of the process of a command."""

import os
import subprocess
import sys
import time

import pytest

#: Runs the command with what a library does at its exit, and a short limit.
PROGRAM = """
import atexit, ctypes, os, sys, threading, time
import interplay.__main__ as program
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


def test_a_reader_that_takes_its_time_gets_all_output():
    """Such as `less`: the end of the output waits in this process until the pipe has room."""
    program = PROGRAM.format(
        library="sys.stdout.write('x' * 65536); sys.stdout.flush(); sys.stdout.write('y' * 4000)",
        status=0, seconds=0.5, before="",
    )  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:  # fmt: skip
        # Twice the time after which an end that hangs is forced, and the start of Python.
        time.sleep(3)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, len(output), errors) == (0, 65536 + 4000 + len("the report\n"), "")


def test_a_process_without_standard_output_ends():
    done = ended("os.close(1); sys.stdout = None; atexit.register(time.sleep, 1000)", 0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_command_whose_standard_output_is_closed_has_no_traceback(form):
    shell = f'exec "$0" -m interplay theory bounds --depth 2 --width 8 {form} >&-'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["schema"],
        ["theory", "bounds", "--depth", "2", "--width", "8"],
        ["theory", "bounds", "--depth", "2", "--width", "8", "--json"],
    ],
)
def test_a_reader_that_has_ended_is_no_error(arguments):
    with subprocess.Popen(
        [sys.executable, "-m", "interplay", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")


def test_ctrl_c_outside_the_command_has_the_status_of_ctrl_c():
    assert ended("raise KeyboardInterrupt", 0).returncode == 130


def test_an_exception_that_nobody_handles_keeps_its_traceback():
    done = ended("raise RuntimeError('a defect')", 0)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("RuntimeError: a defect\n")
