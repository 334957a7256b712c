"""Randomness as a function, not a stream.

Every random number in training is a function of (seed, what it is for, slot, refill, step), never of the order of
calls. That makes resume exact, one rank equal to two, and gives all variants of a study the same random numbers.
The torch half runs on any device; the numpy half orders the data.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ponder.base import native

# What a random number is for. Two uses never share a key.
SLOT, NOISE_X, NOISE_H, NOISE_L, EXPLORE, EXPLORE_LENGTH, MASK, ORDER = range(1, 9)
INIT_H, INIT_L, EXAMPLE, CORRUPT, STATE = range(9, 14)

_GOLDEN = 0x9E3779B97F4A7C15


def _signed(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >= 1 << 63 else value


_M1, _M2, _STEP = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB), _signed(_GOLDEN)


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical right shift of int64 (torch's is arithmetic)."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def fold(key: Tensor, *values: Tensor | int) -> Tensor:
    """A new 64-bit key from a key and the values that tell it apart (splitmix64 finaliser per value)."""
    lib = native.library() if type(key) is Tensor and key.is_cpu and key.is_contiguous() else None
    for value in values:
        if lib is not None and (isinstance(value, int) or (type(value) is Tensor and value.shape == key.shape)):
            key = _folded(lib, key, value)
            continue
        x = key + _STEP + value * _M2 if isinstance(value, Tensor) else key + _signed(_STEP + value * _M2)
        x = (x ^ _shift(x, 30)) * _M1
        x = (x ^ _shift(x, 27)) * _M2
        key = x ^ _shift(x, 31)
    return key


def _folded(lib: native.Library, key: Tensor, value: Tensor | int) -> Tensor:
    """The same by our own kernel, in one call."""
    out = torch.empty_like(key)
    with_, more = (value.contiguous(), 0) if isinstance(value, Tensor) else (None, _signed(value))
    lib("fold", 0, key.numel(), key, with_, more, out)
    return out


def slot_keys(seed: int, slots: Tensor, refills: Tensor) -> Tensor:
    """The 8 bytes a slot carries: everything random about the example in it derives from them."""
    return fold(torch.full_like(slots, _signed(seed)), SLOT, slots, refills)


def _bits(key: Tensor, count: int) -> Tensor:
    """[B] keys -> [B, count] int32 random bits: a counter joined with both halves of the key and hashed, in place."""
    low = (key & 0xFFFFFFFF).to(torch.int64)
    low = torch.where(low >= 1 << 31, low - (1 << 32), low).to(torch.int32)
    odd = (key >> 32).to(torch.int32).bitwise_or_(1)
    x = torch.arange(count, dtype=torch.int32, device=key.device).mul_(-1640531527)[None, :] ^ low[:, None]
    return _mix32(x.mul_(odd[:, None]))


def _mix32(x: Tensor) -> Tensor:
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(-2073254261)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def uniform(key: Tensor) -> Tensor:
    """[B] keys -> [B] numbers in [0, 1)."""
    return _shift(fold(key, 0), 40).to(torch.float32) * 2.0**-24


def uniforms(key: Tensor, count: int) -> Tensor:
    """[B] keys -> [B, count] numbers in [0, 1)."""
    return (_bits(key, count) >> 8).bitwise_and_(0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def normal(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """[B] keys -> [B, *shape] standard normal numbers (Box-Muller)."""
    count = math.prod(shape)
    half = (count + 1) // 2
    bits = _bits(key, 2 * half)
    u = ((bits >> 8).bitwise_and_(0xFFFFFF)).to(torch.float32).add_(0.5).mul_(2.0**-24)
    radius = u[:, :half].log_().mul_(-2).sqrt_()
    angle = u[:, half:].mul_(2 * math.pi)
    pairs = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)
    return pairs[:, :count].reshape(-1, *shape).to(dtype)


def keep_mask(key: Tensor, shape: tuple[int, ...], drop: float, dtype: torch.dtype) -> Tensor:
    """[B] keys -> [B, *shape] dropout masks: 0 with probability `drop`, else 1 / (1 - drop)."""
    count, least = math.prod(shape), round(drop * 65536) - 32768
    fits = type(key) is Tensor and key.is_cpu and dtype == torch.float32 and count % (2 * native.STEP) == 0
    if fits and (lib := native.library()):
        return _masks(lib, key.contiguous(), count, least, 1 / (1 - drop)).view(-1, *shape)
    # 16 random bits decide one element: precise to 1/65536, at half the cost of 32.
    bits = _bits(key, (count + 1) // 2).view(torch.int16)[:, :count]
    kept = torch.empty(bits.shape, dtype=dtype, device=key.device)
    torch.ge(bits, least, out=kept)  # by way of bool would take twice as long
    return kept.view(-1, *shape).mul_(1 / (1 - drop))


def _masks(lib: native.Library, key: Tensor, count: int, least: int, kept: float) -> Tensor:
    """The same by our own kernel, to the same bits."""
    out = torch.empty(len(key), count, dtype=torch.float32)

    def work(first: int, last: int, _: int) -> None:
        lib("keep_mask", first, last, count, key, least, kept, out)

    lib.shared(len(key), native.least(10 * count), work)
    return out


# The order of the data ------------------------------------------------------------------------------------------------

UInts = npt.NDArray[np.uint64]
WHOLE = 2**17
"""Examples of which an epoch's order is computed at once and kept (a megabyte)."""


def mix(*values: npt.ArrayLike) -> UInts:
    """Fold integers or integer arrays into 64-bit keys (numpy; broadcasts)."""
    with np.errstate(over="ignore"):
        key = np.uint64(_GOLDEN)
        for value in values:
            x: Any = key + np.asarray(value).astype(np.uint64) * np.uint64(0x94D049BB133111EB) + np.uint64(_GOLDEN)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            key = x ^ (x >> np.uint64(31))
    return np.asarray(key)


def permuted(position: npt.NDArray[np.int64], size: int, key: UInts) -> npt.NDArray[np.int64]:
    """Element `position` of a pseudo-random permutation of range(size) that `key` names, without building it.

    A balanced Feistel network over the smallest even number of bits that holds `size`; positions that fall outside
    walk on until they are inside, so it is a bijection for any size.
    """
    half = np.uint64(max(1, math.ceil(math.log2(max(size, 2)) / 2)))
    low = np.uint64((1 << int(half)) - 1)
    out = np.asarray(position).astype(np.uint64)
    key = np.broadcast_to(key, out.shape)
    todo = np.ones(out.shape, dtype=bool)
    while todo.any():
        x, k = out[todo], key[todo]
        left, right = x >> half, x & low
        for round_number in range(4):
            left, right = right, left ^ (mix(k, round_number, right) & low)
        out[todo] = (left << half) | right
        todo = out >= size
    return out.astype(np.int64)


def drawn(
    seed: int, size: int, batch: int, slots: npt.NDArray[np.int64], refills: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which example enters a slot at its r-th refill: (index, epoch).

    Draw number r * batch + slot, cut into epochs of `size` draws, each a permutation of its own. No example is drawn
    and thrown away, the batch may exceed the dataset, and no rank needs to know what the others drew.
    """
    number = refills * batch + slots
    epoch, place = number // size, number % size
    if size > WHOLE:
        return permuted(place, size, mix(seed, ORDER, epoch)), epoch
    index = np.empty_like(place)
    for each in sorted(set(epoch.tolist())):
        here = epoch == each
        index[here] = _order(seed, size, each)[place[here]]
    return index, epoch


@lru_cache(maxsize=4)
def _order(seed: int, size: int, epoch: int) -> npt.NDArray[np.int64]:
    """All of an epoch's permutation: a small one costs no more than the handful that a refill asks for."""
    return permuted(np.arange(size), size, mix(seed, ORDER, epoch))
