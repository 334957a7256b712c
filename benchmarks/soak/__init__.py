"""Faults, fuzzed inputs and vanishing clients, seeded and counted: `python -m benchmarks.soak --hours 0.1`.

`blows.py` is how a process or a disk is struck, `works.py` what is struck, `faults.py` one of each and the verdict,
`fuzz.py` inputs that nobody should give, `clients.py` a server whose clients come and go. `record.py` keeps the count
of all runs in results/soak.json and writes docs/reliability.md from it.
"""
