"""Training over two hosts, one of which dies: `python -m benchmarks.hosts`, as root on Linux; what it says is kept in
docs/scaling.md.

The hosts are network namespaces with a cable (veth) between them and one disk, as on a cluster. `torchrun --nnodes 2`
trains over them undisturbed; once more, with a rank killed; and on after that with a host killed, its launcher
and all its ranks at once. The same command goes on each time. The end must be that of the undisturbed run, bit for bit.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.soak.works import end_of_training
from ponder.training.log import read_log

HOSTS = {"ponder-a": "10.77.0.1", "ponder-b": "10.77.0.2"}
RANKS = 2
"""Of each host."""
SETTINGS = {
    "data.train": 300, "data.val": 40, "data.test": 40, "model.width": 32, "model.h_cycles": 1, "model.l_cycles": 1,
    "model.max_steps": 2, "train.batch": 32, "train.updates": 60, "train.warmup": 2, "train.log_every": 1,
    "train.eval_every": 20, "train.save_every": 10, "eval.examples": 40,
}  # fmt: skip


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def two_hosts() -> Iterator[None]:
    try:
        for name in HOSTS:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        first, second = HOSTS
        ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for name, address in HOSTS.items():
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
        yield
    finally:
        for name in HOSTS:
            subprocess.run(["ip", "netns", "delete", name], check=False)


@contextmanager
def training(place: Path, out: str) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    """The same command on both hosts."""
    end = f"{HOSTS['ponder-a']}:29400"
    train = ["-m", "ponder", "train", "sudoku-mini", "--out", out, "--quiet"]
    train += [f"--{key}={value}" for key, value in SETTINGS.items()]
    going = {}
    for number, (name, address) in enumerate(HOSTS.items()):
        words = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        words += ["--nproc-per-node", str(RANKS), "--node-rank", str(number), "--rdzv-backend", "c10d"]
        words += ["--rdzv-endpoint", end, "--rdzv-conf", f"is_host={number == 0}", "--rdzv-id", out]
        words += ["--local-addr", address, *train]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable"}
        pipe = subprocess.PIPE
        going[name] = subprocess.Popen(
            words, cwd=place, env=env, stdout=pipe, stderr=subprocess.STDOUT, encoding="utf-8"
        )
    try:
        yield going
    finally:
        for each in going.values():
            with suppress(psutil.NoSuchProcess):
                for process in [*psutil.Process(each.pid).children(recursive=True), psutil.Process(each.pid)]:
                    process.kill()


def ranks(launcher: "subprocess.Popen[str]") -> list[psutil.Process]:
    return [each for each in psutil.Process(launcher.pid).children(recursive=True) if "ponder" in each.cmdline()]


def until(going: dict[str, "subprocess.Popen[str]"], log: Path, update: int) -> None:
    while not any(row["update"] >= update for row in read_log(log)):
        for name, each in going.items():
            assert each.poll() is None, f"{name}: {each.communicate()[0][-2000:]}"
        time.sleep(0.05)


def ended(name: str, launcher: "subprocess.Popen[str]") -> str:
    out = launcher.communicate(timeout=900)[0]
    lines = list(dict.fromkeys(line for line in out.splitlines() if line.startswith("ponder: ")))
    print(
        f"    {name}: launcher ended with {launcher.returncode}" + "".join(f"\n      {line}" for line in lines),
        flush=True,
    )
    return out


def whole(place: Path, out: str) -> None:
    with training(place, out) as going:
        for name, each in going.items():
            out = ended(name, each)
            assert each.returncode == 0, out


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ponder-hosts-") as folder, two_hosts():
        place = Path(folder)
        shape = f"{len(HOSTS)} hosts of {RANKS} ranks, {SETTINGS['train.updates']} updates"
        print(f"undisturbed: {shape}", flush=True)
        whole(place, "undisturbed")
        log = place / "struck/metrics.jsonl"
        print("a rank of ponder-b is killed after update 23", flush=True)
        with training(place, "struck") as going:
            until(going, log, 23)
            ranks(going["ponder-b"])[0].kill()
            for name, each in going.items():
                ended(name, each)
        print("the same command again; ponder-b is killed, launcher and ranks at once, after update 43", flush=True)
        with training(place, "struck") as going:
            until(going, log, 43)
            for process in [psutil.Process(going["ponder-b"].pid), *ranks(going["ponder-b"])]:
                process.send_signal(signal.SIGKILL)
            for name, each in going.items():
                ended(name, each)
        print("the same command again", flush=True)
        whole(place, "struck")
        same = end_of_training(place / "struck") == end_of_training(place / "undisturbed")
        print(f"log, result, weights, optimiser and carries: {'the same, bit for bit' if same else 'DIFFERENT'}")
        raise SystemExit(not same)


if __name__ == "__main__":
    main()
