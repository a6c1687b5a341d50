"""The program `interplay`, also `python -m interplay` for `ray job submit`: the command, and an end that always comes.

A driver that never exits keeps its job RUNNING and its machines paid.
"""

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import threading

from interplay.cli import main

#: Seconds that what libraries do at exit may take; closing Ray and the trackers is part of the command, before it.
END_SECONDS = 10.0


def run() -> None:
    """Run the command and end the process with its status, within twice `END_SECONDS` whatever libraries do at exit.

    That time begins when all output is written: the reader of a pipe, such as `less`, may take as long as it likes.

    Arrow (pyarrow 25) can wait for ever in its exit handler while an S3 file system is alive (apache/arrow issue
    50188), and holds the interpreter's lock in it, so that no thread of Python can end the process. The handler only
    guards against the end of the process in an orderly way, destructors of C++ libraries, which is left out here.
    """
    status = 1

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            # None, if the process was started without it.
            if stream:
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()

    def leave() -> None:
        flush()
        os._exit(status)

    # Registered first, so it runs after the handlers of all libraries.
    atexit.register(leave)
    try:
        main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
        raise
    finally:
        flush()
        if "pyarrow.fs" in sys.modules:
            from pyarrow import fs

            atexit.unregister(fs.ensure_s3_finalized)
        timer = threading.Timer(END_SECONDS, leave)
        timer.daemon = True
        timer.start()
        # For what holds the interpreter's lock; it prints where, and the status is 1.
        with contextlib.suppress(ValueError, OSError):
            faulthandler.dump_traceback_later(2 * END_SECONDS, exit=True)


if __name__ == "__main__":
    run()
