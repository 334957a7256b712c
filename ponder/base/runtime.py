"""Device, precision, ranks: the only file that knows what machine this is."""

import ctypes
import os
import platform
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ponder.base import cores, native
from ponder.base.errors import LAUNCHED, RankLost, UserError
from ponder.base.source import commit


@dataclass(frozen=True)
class Runtime:
    device: torch.device
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """This process's number on its own node."""

    @property
    def main(self) -> bool:
        return self.rank == 0

    def autocast(self, precision: str) -> AbstractContextManager[Any]:
        if precision == "bfloat16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def sum_(self, tensors: list[Tensor]) -> None:
        """Add up over ranks, in place, in one message per dtype."""
        if self.world == 1 or not tensors:
            return
        for dtype in {t.dtype for t in tensors}:
            same = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.reshape(-1) for t in same])
            with self._meeting():
                dist.all_reduce(flat)
            for t, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
                t.copy_(part.view_as(t))

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate over ranks; every rank holds the same number of rows."""
        if self.world == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        with self._meeting():
            dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def gather_objects(self, value: Any) -> list[Any]:
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        with self._meeting():
            dist.all_gather_object(values, value)
        return values

    def clock(self) -> float:
        """Seconds of work: the processor's own on a CPU, where a neighbour must not count; elsewhere the wall's."""
        return time.process_time() if self.device.type == "cpu" else time.perf_counter()

    def barrier(self) -> None:
        if self.world > 1:
            with self._meeting():
                dist.barrier()

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """A rank that survives another ends too, and says so."""
        try:
            yield
        except RuntimeError as error:
            why = re.sub(r"^\[\S+\] ", "", str(error)).splitlines()[0].partition(". This is")[0]
            raise RankLost(
                f"rank {self.rank} of {self.world} ends because another rank is gone ({why}): the same command goes on "
                f"from the last checkpoint"
            ) from None

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()


def start(device: str = "auto", deterministic: bool = True) -> Runtime:
    """The runtime of this process: alone, or one of those `torchrun` started."""
    device = best_device() if device == "auto" else device
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(int(os.environ.get(LAUNCHED, os.getppid())))
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda":
            chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(chosen)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, AttributeError) as error:  # the last from a torch built without CUDA
        raise UserError(
            f"device {device!r} cannot be used here ({str(error).splitlines()[0]}): try --device cpu"
        ) from None
    if chosen.type == "cpu":
        reuse_memory()
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    if chosen.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
    return Runtime(chosen, rank, world, int(os.environ.get("LOCAL_RANK", "0")))


def end_with(parent: int) -> None:
    """Ask this process to stop as soon as its parent is gone, however that went."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def reuse_memory() -> None:
    """Let glibc keep freed memory instead of handing it back to the kernel after every large tensor.

    Otherwise each layer's temporaries are mapped, zeroed and unmapped again, which costs a tenth of a step on a CPU
    (docs/performance.md). Elsewhere than on glibc nothing happens.
    """
    m_trim_threshold, m_mmap_max = -1, -4
    with suppress(OSError, AttributeError, TypeError):  # the last from Windows, which has no CDLL(None)
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, -1)


def give_back() -> None:
    """Hand to the kernel what is free by now. A process that keeps it for ever has the size of all the places in which
    its tensors ever lay, and whatever small thing comes to lie in one of them makes it grow (docs/reliability.md)."""
    with suppress(OSError, AttributeError, TypeError):  # as above
        ctypes.CDLL(None).malloc_trim(0)


def carry_dtype(precision: str) -> torch.dtype:
    """What the states are kept in between ACT steps, in training, evaluation and serving alike."""
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def precision_for(asked: str, device: torch.device) -> str:
    return asked if asked != "auto" else "bfloat16" if device.type == "cuda" else "float32"


def compile_for(asked: str, device: torch.device) -> bool:
    return asked == "block" or (asked == "auto" and device.type == "cuda")


def environment() -> dict[str, Any]:
    """What a run folder should say about where it was made."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": cores.processor(),
        "kernels": native.state(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "commit": commit(),
    }


ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
"""oneDNN's product of a linear layer, where torch was built with it."""


def mkl_lags() -> bool:
    """Whether oneDNN is the faster of the two wherever both can do a product: MKL, which torch's own products are,
    makes no use of AVX-512 on processors that are not Intel's, and has half the rate there (docs/performance.md). A
    matter of the processor alone, so that a training has the same bits each time."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return ONEDNN is not None and torch.backends.mkl.is_available() and wide and "Intel" not in cores.processor()


def products(a: Tensor, b: Tensor) -> list[Callable[[], Tensor]]:
    """The ways there are here of computing [m, k] @ [n, k]^T in float32: torch's, oneDNN's, our own kernels'."""
    ways: list[Callable[[], Tensor]] = [lambda: a @ b.t()]
    if a.device.type == "cpu" and len(b) % native.STEP == 0 and (lib := native.library()):
        ours = native.packed(lib, b, transposed=True)
        ways.append(lambda: native.linear(lib, a, ours, len(b)))
    if a.device.type == "cpu" and ONEDNN is not None:
        packed = torch.ops.mkldnn._reorder_linear_weight(b, len(a))
        ways.append(lambda: ONEDNN(a, packed, None, "none", [], ""))
    return ways


def matmul_peak(shape: tuple[int, int, int], device: torch.device, seconds: float = 0.02) -> float:
    """Measured float32 multiply-add rate in FLOP/s for [m, k] @ [k, n], by the fastest of the ways there are, on one
    thread: what 'peak' means in this project."""
    m, k, n = shape
    ways = products(torch.randn(m, k, device=device), torch.randn(n, k, device=device))
    best = 0.0
    until = time.perf_counter() + seconds
    with native.threads_to_ourselves(1):
        while time.perf_counter() < until:
            for product in ways:
                began = time.perf_counter()
                for _ in range(4):
                    product()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                best = max(best, 4 * 2 * m * k * n / (time.perf_counter() - began))
    return best
