"""Random numbers that are functions: their statistics, and that order of calls means nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ponder.base import native, rng

pytestmark = pytest.mark.numeric


def keys(count: int, seed: int = 0) -> torch.Tensor:
    return rng.slot_keys(seed, torch.arange(count), torch.zeros(count, dtype=torch.int64))


def test_keys_differ_by_seed_slot_and_refill() -> None:
    slots = torch.arange(1000)
    made = [rng.slot_keys(seed, slots, torch.full_like(slots, refill)) for seed in (0, 1) for refill in (0, 1, 2)]
    everything = torch.cat(made)
    assert len(set(everything.tolist())) == len(everything)


def test_a_slot_gets_the_same_numbers_in_any_company() -> None:
    key = keys(50)
    everything = rng.normal(key, (7, 5), torch.float32)
    masks = rng.keep_mask(key, (7, 5), 0.3, torch.float32)
    some = torch.tensor([31, 4, 17])
    assert torch.equal(rng.normal(key[some], (7, 5), torch.float32), everything[some])
    assert torch.equal(rng.keep_mask(key[some], (7, 5), 0.3, torch.float32), masks[some])


def test_normal_numbers_are_normal_and_independent() -> None:
    x = rng.normal(keys(400), (40, 25), torch.float32)
    assert abs(float(x.mean())) < 0.01 and abs(float(x.std()) - 1) < 0.01
    assert abs(float((x**4).mean()) - 3) < 0.1
    flat = x.reshape(400, -1)
    between = np.corrcoef(flat.numpy())
    np.fill_diagonal(between, 0)
    assert abs(between).max() < 0.2
    assert abs(float((flat[:, 1:] * flat[:, :-1]).mean())) < 0.01


def test_masks_drop_at_their_rate_and_keep_the_mean() -> None:
    for drop in (0.01, 0.1, 0.5):
        mask = rng.keep_mask(keys(300), (50, 20), drop, torch.float32)
        assert abs(float((mask == 0).float().mean()) - drop) < 0.005
        assert torch.equal(mask[mask > 0], torch.full_like(mask[mask > 0], 1 / (1 - drop)))


@pytest.mark.skipif(native.missing() is not None, reason="there is no kernel here")
@pytest.mark.parametrize("shape", [(1, 32), (17, 192), (3, 33)])
def test_masks_have_the_same_bits_with_and_without_our_kernel(shape: tuple[int, int]) -> None:
    for drop in (0.0001, 0.01, 0.5, 0.99):
        with native.without():
            plain = rng.keep_mask(keys(60), shape, drop, torch.float32)
        assert torch.equal(rng.keep_mask(keys(60), shape, drop, torch.float32), plain)
        scattered = torch.stack((keys(60), keys(60)), dim=1)[:, 0]
        assert torch.equal(rng.keep_mask(scattered, shape, drop, torch.float32), plain)
        assert torch.equal(rng.keep_mask(keys(60), shape, drop, torch.float64).float(), plain)


def test_uniform_numbers_fill_the_interval() -> None:
    u = rng.uniform(keys(20000))
    assert float(u.min()) >= 0 and float(u.max()) < 1
    assert np.abs(np.histogram(u.numpy(), bins=10, range=(0, 1))[0] / 20000 - 0.1).max() < 0.01


def test_an_order_kept_whole_is_the_one_computed_element_by_element(monkeypatch: pytest.MonkeyPatch) -> None:
    slots, refills = np.arange(40), np.arange(40) // 3  # over several epochs at once
    kept = rng.drawn(5, 97, 40, slots, refills)
    monkeypatch.setattr(rng, "WHOLE", 0)
    for each, one in zip(kept, rng.drawn(5, 97, 40, slots, refills), strict=True):
        assert np.array_equal(each, one)


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**40))
def test_permuted_is_a_permutation(size: int, seed: int) -> None:
    out = rng.permuted(np.arange(size), size, rng.mix(seed))
    assert np.array_equal(np.sort(out), np.arange(size))


def test_permutations_of_different_epochs_differ_and_mix() -> None:
    a, b = (rng.permuted(np.arange(1000), 1000, rng.mix(0, epoch)) for epoch in (0, 1))
    assert (a == b).mean() < 0.02
    assert abs(np.corrcoef(a, np.arange(1000))[0, 1]) < 0.1


@given(size=st.integers(1, 50), batch=st.integers(1, 70), refills=st.integers(1, 6))
def test_every_draw_is_used_once_per_epoch(size: int, batch: int, refills: int) -> None:
    """Slots may advance at different speeds: each (slot, refill) still names one draw, and none twice in an epoch."""
    slots, counts = (a.ravel() for a in np.meshgrid(np.arange(batch), np.arange(refills)))
    index, epoch = rng.drawn(3, size, batch, slots, counts)
    seen = set(zip(index.tolist(), epoch.tolist(), strict=True))
    assert len(seen) == batch * refills
    whole = batch * refills // size
    for e in range(whole):
        assert sorted(i for i, at in seen if at == e) == list(range(size))
