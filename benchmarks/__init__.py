"""Speed and memory, measured: `python -m benchmarks.NAME`. What was found: `results/bench_*`, docs/performance.md."""

import ponder  # noqa: F401  before torch is loaded: threads that wait for each other sleep, as in every command
