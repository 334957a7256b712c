"""`make test-portable`: the numerical tests as if on other processors, two environments at a time. In the short form,
which `make test` runs, the same settings are together in two environments instead of apart in four.

Each has a compiler cache of its own: kernels left there under another instruction set abort the interpreter.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
ONE, TWO = {"PONDER_TEST_THREADS": "1"}, {"PONDER_TEST_THREADS": "2"}
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "MKL without vector instructions, 1 thread": {"MKL_CBWR": "COMPATIBLE", **ONE},
    "MKL as with AVX2, 2 threads": {"MKL_CBWR": "AVX2", **TWO},
    "torch with AVX2, 1 thread": {**AVX2, **ONE},
    "torch without vector instructions, 2 threads": {**PLAIN, **TWO},
}
SHORT = {
    "no vector instructions, 1 thread": {"MKL_CBWR": "COMPATIBLE", **PLAIN, **ONE},
    "as with AVX2, 2 threads": {"MKL_CBWR": "AVX2", **AVX2, **TWO},
}


def run(name: str, settings: dict[str, str], rest: list[str]) -> subprocess.CompletedProcess[str]:
    tests = Path(__file__).parents[1].rglob("test_*.py")
    files = [str(path) for path in tests if "mark.numeric" in path.read_text(encoding="utf-8")]
    words = [sys.executable, "-m", "pytest", "-m", "numeric and not slow", *files, *rest]
    with tempfile.TemporaryDirectory(prefix="ponder-portable-") as cache:
        # Threads that wait for each other asleep: there are more of them than cores.
        threads = {"OMP_NUM_THREADS": settings["PONDER_TEST_THREADS"], "OMP_WAIT_POLICY": "PASSIVE"}
        env = {**os.environ, **settings, **threads, "TORCHINDUCTOR_CACHE_DIR": cache}
        done = subprocess.run(
            words, env=env, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    print(f"{'ok' if done.returncode == 0 else 'FAILED':<7}{name}", flush=True)
    return done


def main() -> int:
    rest = [word for word in sys.argv[1:] if word != "--short"]
    chosen = SHORT if "--short" in sys.argv else ENVIRONMENTS
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda name: run(name, chosen[name], rest), chosen))
    for name, result in zip(chosen, done, strict=True):
        if result.returncode != 0:
            given = " ".join(f"{key}={value}" for key, value in chosen[name].items())
            print(f"\n{given} {' '.join(result.args[1:])}\n{result.stdout}")
    return max(result.returncode for result in done)


if __name__ == "__main__":
    sys.exit(main())
