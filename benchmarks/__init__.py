"""Speed and memory, measured: `python -m benchmarks.NAME`. What was found: `results/bench_*`, docs/performance.md."""
