"""The hand-written parts of a layer against their plain forms."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ponder.base.runtime import ONEDNN
from ponder.config.schema import ModelConfig
from ponder.model import products
from ponder.model.products import SwiGLU, Weight, product

SHAPES = [((3, 5), 7, 4), ((40,), 64, 192), ((2, 17), 256, 64), ((0, 5), 8, 4)]
"""Rows, inner and outer width of a product."""


def within_rounding(ours: Tensor, a: Tensor, b: Tensor) -> None:
    """a b^T of float32 in any order of summation: at most so far from the exact one (Higham, section 3.1)."""
    bound = a.shape[-1] * torch.finfo(torch.float32).eps * (a.abs().double() @ b.abs().double().t())
    assert ((ours.double() - a.double() @ b.double().t()).abs() <= bound).all()


@pytest.mark.parametrize("by_onednn", [False, True])
@pytest.mark.parametrize(("rows", "inner", "outer"), SHAPES)
def test_a_product_and_its_gradients_are_those_of_the_definition(
    rows: tuple[int, ...], inner: int, outer: int, by_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_onednn and ONEDNN is None:
        pytest.skip("this torch was built without oneDNN")
    monkeypatch.setattr(products, "GRADIENTS_BY_ONEDNN", by_onednn)
    torch.manual_seed(0)
    x, weight = torch.randn(*rows, inner, requires_grad=True), torch.randn(outer, inner, requires_grad=True)
    out, grad = product(x, Weight.pack(weight, x[..., 0].numel())), torch.randn(*rows, outer)
    within_rounding(out.detach(), x.detach(), weight.detach())
    d_x, d_weight = torch.autograd.grad(out, (x, weight), grad)
    within_rounding(d_x, grad, weight.detach().t())
    within_rounding(d_weight, grad.flatten(0, -2).t(), x.detach().flatten(0, -2).t())


@pytest.mark.parametrize("needs", ["x", "weight"])
def test_a_product_computes_only_the_gradients_that_are_asked_for(needs: str) -> None:
    x, weight = torch.randn(4, 8), torch.randn(6, 8)
    asked = {"x": x, "weight": weight}[needs].requires_grad_()
    (grad,) = torch.autograd.grad(product(x, Weight.pack(weight, 4)).sum(), asked)
    assert grad.shape == asked.shape


def test_a_product_has_the_same_bits_with_and_without_a_graph_and_times_another() -> None:
    torch.manual_seed(0)
    x, times = torch.randn(3, 17, 64), torch.randn(3, 17, 256)
    weight = Weight.pack(torch.randn(256, 64, requires_grad=True), 51)
    with torch.no_grad():
        alone, multiplied = product(x, weight), product(x, weight, times=times)
    assert torch.equal(product(x, weight), alone)
    assert torch.equal(alone * times, multiplied)


def test_only_float32_on_a_cpu_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    if ONEDNN is None:
        pytest.skip("this torch was built without oneDNN")
    weight = torch.randn(8, 8)
    assert Weight.pack(weight, 3).packed is not None
    others = [weight.bfloat16(), weight.double(), weight.to("meta")]
    assert all(Weight.pack(other, 3).packed is None for other in others)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(weight, Weight.pack(weight, 8)).dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter:
        product(weight, Weight.pack(weight, 8))
    assert counter.get_total_flops() == 2 * 8**3
    monkeypatch.setattr(products, "ONEDNN", None)
    assert torch.equal(product(weight, Weight.pack(weight, 8)), F.linear(weight, weight))


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_swiglu_has_the_same_bits_with_and_without_a_graph(conv: bool, masked: bool) -> None:
    torch.manual_seed(0)
    block = SwiGLU(24, ModelConfig(width=24, heads=2, inner_multiple=16), conv=conv)
    x = torch.randn(3, 5, 24)
    mask = torch.rand(3, 5, block.down.in_features).round() if masked else None
    with torch.no_grad():
        without = block(x, block.weights(15), mask)
    assert torch.equal(block(x, block.weights(15), mask), without)


def test_two_taps_are_the_convolution_and_its_gradients() -> None:
    torch.manual_seed(0)
    conv = SwiGLU(24, ModelConfig(width=24, heads=2, inner_multiple=16), conv=True).double().conv
    assert conv is not None
    x = torch.randn(3, 5, conv.in_channels, dtype=torch.float64, requires_grad=True)
    into = (x, *conv.parameters())
    plain, ours = products._convolved(x, conv), products._two_taps(x, conv)
    assert torch.allclose(plain, ours, rtol=1e-12)
    grad = torch.randn_like(plain)
    for a, b in zip(torch.autograd.grad(plain, into, grad), torch.autograd.grad(ours, into, grad), strict=True):
        assert torch.allclose(a, b, rtol=1e-12)
