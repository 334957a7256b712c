"""kernels.c, by this machine's own compiler turned into machine code: compiled once, kept between runs.

Where there is no compiler, or the processor is another one, there is no library, and whoever asks does without.
"""

import ctypes
import hashlib
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ponder.base import files

SOURCE = Path(__file__).with_name("kernels.c")
SWITCH = "PONDER_NATIVE"
"""The variable that turns it off, with 0."""
LEVELS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}
"""What torch makes use of here -> what a compiler may make use of, in words that older ones know too."""
STEP = 16
"""Floats that rows are a multiple of: those of the widest vector."""
LEAST = 2e7
"""Floating-point operations for which it is worth waking another thread."""
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
PATIENCE = 120
"""Seconds that the compiler has."""

SIGNATURES = {
    "pack": "llpllp",
    "linear": "llllppp",
    "linear_weight": "llllppp",
    "norm_forward": "lllppppp",
    "norm_backward": "lllpppppp",
    "swiglu_forward": "lllllppplppplppp",
    "swiglu_backward": "lllllppplppplpppppppp",
    "across_forward": "lllllpppplppp",
    "across_backward": "lllllpppplppppppp",
    "update_forward": "lllpppfpplpp",
    "update_backward": "lllpppplppppppp",
    "noise": "llllppfp",
    "keep_mask": "lllplfp",
    "answer_loss": "llllpplfpp",
    "attention_forward": "lllllpppppp",
    "attention_backward": "lllllpppppp",
    "collect": "llllllllppppfffppp",
    "spread": "lllllllppppppppfffpp",
    "fold": "llpplp",
    "embed_forward": "lllllppppfplp",
    "embed_backward": "lllllpfplpppp",
    "begin": "llllpppp",
    "begin_backward": "llllppp",
    "add_up": "llllpppppp",
    "pass_on": "llllpplp",
    "hold": "lllplpppp",
    "head_forward": "llllllppp",
    "head_backward": "llllllppppp",
    "symbols_forward": "llllllpppp",
    "symbols_backward": "llllllpppp",
    "halting_forward": "llllpppp",
    "halting_backward": "llllpppppp",
    "judge": "llllppppplfppppp",
    "settle": "llplppplfllpppfpppppppp",
    "count_on": "llp",
    "read_out": "llllpppp",
    "moved": "lllpppp",
    "sizes": "llllpp",
    "first_of": "llllpp",
    "adam_atan2": "lllffffffffppppp",
    "sign_step": "llppppffpffpl",
    "enter": "lpplllpppppppppllpppp",
    "play": "lpppplllplllp",
}
"""Of every function: p for a pointer, l for a whole number, f for a number."""


def _calls() -> str:
    """The cases of `play`, which knows functions by their numbers here: each called with arguments from an array."""
    given = {name: ", ".join(f"v[{i}].{kind}" for i, kind in enumerate(kinds)) for name, kinds in SIGNATURES.items()}
    numbered = enumerate(given.items())
    return " ".join(f"case {n}: {name}({values}); break;" for n, (name, values) in numbered if name != "play")


Argument = Tensor | int | float | None


class Library:
    """The functions of kernels.c, called with tensors for pointers, None for none, and numbers."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        kinds = {"p": ctypes.c_void_p, "l": ctypes.c_long, "f": ctypes.c_float}
        self._functions = {}
        for name, kind in SIGNATURES.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = [kinds[k] for k in kind], None
            self._functions[name] = function

    def __call__(self, name: str, *values: Argument) -> None:
        self._functions[name](*(_pointer(v) if isinstance(v, Tensor) else v for v in values))

    def shared(self, count: int, least: int, work: Callable[[int, int, int], None]) -> None:
        """work(first, last, part) over range(count), in as many parts as torch has threads and `least` allows; the
        calls of this library let other threads run."""
        in_parts(sharing(count, least), count, work)


def _pointer(tensor: Tensor) -> int:
    """C reads what lies there, whatever it is."""
    if tensor.dtype not in (torch.float32, torch.int32, torch.int64, torch.uint8) or not tensor.is_contiguous():
        raise RuntimeError(f"no kernel reads dtype {tensor.dtype} with strides {tensor.stride()} of {tensor.shape}")
    return tensor.data_ptr()


_kept: list[int] = []


def threads() -> int:
    """That share the work of kernels: as many as torch has, or had."""
    return _kept[-1] if _kept else torch.get_num_threads()


@contextmanager
def threads_to_ourselves(count: int | None = None) -> Iterator[None]:
    """For a while, torch has one thread, and kernels have so many, or those that torch had: its threads would wait for
    each other longer than the small operations between two programs take."""
    before = torch.get_num_threads()
    _kept.append(count or threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _kept.pop()
        torch.set_num_threads(before)


def sharing(count: int, least: int) -> int:
    """Parts of `count` things that threads do at a time, each of at least so many."""
    return max(1, min(threads(), count // max(1, least)))


def in_parts(parts: int, count: int, work: Callable[[int, int, int], None]) -> None:
    """work(first, last, part) over range(count), all parts at a time."""
    if parts == 1:
        work(0, count, 0)
        return
    ends = [count * part // parts for part in range(parts + 1)]
    others = [_pool().submit(work, ends[part], ends[part + 1], part) for part in range(1, parts)]
    work(0, ends[1], 0)
    for other in others:
        other.result()


_lock = threading.Lock()
_threads: list[ThreadPoolExecutor] = []


def _pool() -> ThreadPoolExecutor:
    with _lock:
        if not _threads:
            _threads.append(ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "ponder-native"))
        return _threads[0]


if hasattr(os, "register_at_fork"):  # threads stay behind in the parent
    os.register_at_fork(after_in_child=_threads.clear)


class Missing(Exception):
    """Why there is no library; the text is for people."""


def folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ponder" / "native"


def _is_whole(content: bytes) -> bool:
    """Whether a library ends with the hash of all before it. One that was cut off would kill whoever loads it; what
    follows its end, loaders do not read."""
    return hashlib.sha256(content[:-32]).digest() == content[-32:]


@cache
def _loaded(source: Path, level: str) -> Library | Missing:
    try:
        flags = *FLAGS, f"-DCALLS={_calls()}", *LEVELS[level]
    except KeyError:
        return Missing(f"made for processors with AVX2 or AVX-512, and torch says {level}")
    try:
        parts = source.read_bytes(), *(flag.encode() for flag in flags)
    except OSError as error:  # a program that was packed without it
        return Missing(f"its source cannot be read ({error})")
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()
    file = f"{source.stem}-{level.lower()}-{name[:16]}.so"
    with suppress(OSError, RuntimeError, AttributeError):  # the last two: there is no home; it lacks a function
        if _is_whole(files.read(folder() / file)):
            return Library(ctypes.CDLL(str(folder() / file)))
    with tempfile.TemporaryDirectory(prefix="ponder-native-") as scratch:
        made = Path(scratch) / file
        named = os.environ.get("CC") or "cc"
        try:
            words = [*shlex.split(named), *flags, str(source), "-o", str(made), "-lm"]
            done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", timeout=PATIENCE)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return Missing(f"no C compiler: {named} cannot be run ({error})")
        if done.returncode != 0:
            return Missing(f"{named} cannot compile it: {(done.stderr.strip() or 'no word').splitlines()[0]}")
        with suppress(OSError, RuntimeError):  # a folder that cannot be written costs a second at every start
            content = made.read_bytes()
            files.write(folder() / file, content + hashlib.sha256(content).digest())
            return Library(ctypes.CDLL(str(folder() / file)))
        try:
            return Library(ctypes.CDLL(str(made)))
        except OSError as error:
            return Missing(f"what {named} made cannot be loaded: {error}")


_off: list[bool] = []


@contextmanager
def without() -> Iterator[None]:
    """For a while, do without: as where there is no compiler."""
    _off.append(True)
    try:
        yield
    finally:
        _off.pop()


def as_when(made: Mapping[str, Any] | None) -> AbstractContextManager[None]:
    """The operations of a thing with these surroundings, so that it goes on or is repeated to the same bits: without
    our kernels where they had none. None, of a thing that is new: what there is."""
    return nullcontext() if made is None or made.get("kernels") else without()


def find() -> Library | Missing:
    """The library, compiled if need be, or why there is none."""
    if _off or os.environ.get(SWITCH) == "0":
        return Missing(f"turned off by {SWITCH}=0")
    return _loaded(SOURCE, torch.backends.cpu.get_cpu_capability())


def library() -> Library | None:
    found = find()
    return None if isinstance(found, Missing) else found


def missing() -> str | None:
    """Why there is no library; None where there is one."""
    found = find()
    return str(found) if isinstance(found, Missing) else None


def state() -> str | None:
    """What our own kernels are compiled for, "AVX512"; None where there are none."""
    return None if library() is None else torch.backends.cpu.get_cpu_capability()


# Products -------------------------------------------------------------------------------------------------------------


def least(flops: float) -> int:
    """Things of so many operations each that a thread must have."""
    return int(LEAST / max(flops, 1.0)) + 1


def packed(lib: Library, weight: Tensor, transposed: bool) -> Tensor:
    """The weight [out, in] in the order that products with rows of `in` (transposed) or of `out` numbers read it."""
    weight, (out, inner) = weight.contiguous(), weight.shape
    to = torch.empty(weight.numel(), dtype=torch.float32)
    if transposed:
        lib("pack", inner, out, weight, 1, inner, to)
    else:
        lib("pack", out, inner, weight, inner, 1, to)
    return to


def linear(lib: Library, x: Tensor, weight: Tensor, out: int) -> Tensor:
    """x [..., in] times a packed weight: [..., out]"""
    x = x.contiguous()
    inner = x.shape[-1]
    rows, y = x.numel() // inner, torch.empty(*x.shape[:-1], out, dtype=torch.float32)

    def work(first: int, last: int, _: int) -> None:
        lib("linear", first, last, inner, out, x, weight, y)

    lib.shared(rows, least(2 * inner * out), work)
    return y
