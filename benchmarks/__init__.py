"""Speed and memory, measured: `python -m benchmarks.NAME`. What they found is in `results/bench_*` and docs/performance.md."""
