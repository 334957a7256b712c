"""Threads that wait actively for each other cost the most where other work runs: numpy and torch ask for their number
when they are imported, which is after this."""

import os

THREADS = os.environ.get("PONDER_TEST_THREADS", "1")
os.environ["OMP_NUM_THREADS"] = THREADS  # what `ponder train` takes, in this process and in those that tests start
