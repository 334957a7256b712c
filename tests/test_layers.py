"""The hand-written parts of a layer against their plain forms."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.config import ModelConfig
from ponder.model import layers
from ponder.model.layers import SwiGLU, product

SHAPES = [((3, 5), 7, 4), ((40,), 64, 192), ((2, 17), 256, 64), ((0, 5), 8, 4)]
"""Rows, inner and outer width of a product."""


def _within_rounding(ours: Tensor, a: Tensor, b: Tensor) -> None:
    """a b^T of float32 in any order of summation: at most so far from the exact one (Higham, section 3.1)."""
    bound = a.shape[-1] * torch.finfo(torch.float32).eps * (a.abs().double() @ b.abs().double().t())
    assert ((ours.double() - a.double() @ b.double().t()).abs() <= bound).all()


@pytest.mark.parametrize(("rows", "inner", "outer"), SHAPES)
def test_a_product_and_its_gradients_are_those_of_the_definition(rows: tuple[int, ...], inner: int, outer: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(*rows, inner, requires_grad=True), torch.randn(outer, inner, requires_grad=True)
    out, grad = product(x, weight), torch.randn(*rows, outer)
    _within_rounding(out.detach(), x.detach(), weight.detach())
    d_x, d_weight = torch.autograd.grad(out, (x, weight), grad)
    _within_rounding(d_x, grad, weight.detach().t())
    _within_rounding(d_weight, grad.flatten(0, -2).t(), x.detach().flatten(0, -2).t())


@pytest.mark.parametrize("needs", ["x", "weight"])
def test_a_product_computes_only_the_gradients_that_are_asked_for(needs: str) -> None:
    x, weight = torch.randn(4, 8), torch.randn(6, 8)
    asked = {"x": x, "weight": weight}[needs].requires_grad_()
    (grad,) = torch.autograd.grad(product(x, weight).sum(), asked)
    assert grad.shape == asked.shape


def test_a_product_has_the_same_bits_with_and_without_a_graph_and_times_another() -> None:
    torch.manual_seed(0)
    x, weight, times = torch.randn(3, 17, 64), torch.randn(256, 64, requires_grad=True), torch.randn(3, 17, 256)
    with torch.no_grad():
        alone, multiplied = product(x, weight), product(x, weight, times=times)
    assert torch.equal(product(x, weight), alone)
    assert torch.equal(alone * times, multiplied)


def _plain(function: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    with monkeypatch.context() as patch:
        patch.setattr(layers, "ONEDNN", None)
        return function()


def test_one_dnn_is_used_where_torch_has_it_and_only_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    if layers.ONEDNN is None:
        pytest.skip("this torch was built without oneDNN")
    seen = []
    real = layers._product
    monkeypatch.setattr(layers, "_product", lambda x, w: seen.append(x.dtype) or real(x, w))  # type: ignore[func-returns-value]
    x = torch.randn(3, 8)
    product(x, x)
    product(x.bfloat16(), x.bfloat16())
    product(x.double(), x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(x, x).dtype == torch.bfloat16
    assert seen == [torch.float32]
    assert torch.equal(_plain(lambda: product(x, x), monkeypatch), F.linear(x, x))


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_swiglu_has_the_same_bits_with_and_without_a_graph(conv: bool, masked: bool) -> None:
    torch.manual_seed(0)
    block = SwiGLU(24, ModelConfig(width=24, heads=2, inner_multiple=16), conv=conv)
    x = torch.randn(3, 5, 24)
    mask = torch.rand(3, 5, block.down.in_features).round() if masked else None
    with torch.no_grad():
        without = block(x, mask)
    assert torch.equal(block(x, mask), without)
