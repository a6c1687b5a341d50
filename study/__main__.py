"""`python -m study` is the command `interplay`, for `ray job submit`."""

from study.cli import main

main()
