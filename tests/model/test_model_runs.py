"""Running the model: slots that come and go, padding, compilation, precision, devices that cannot be tried here."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import ponder
from ponder.config.schema import ModelConfig
from ponder.model import losses
from ponder.model.attention import SHORT
from ponder.model.layers import Layer, compile_blocks
from ponder.model.reasoner import Carry, Reasoner
from ponder.model.recurrence import States
from tests.support.models import PRESETS, TASKS, TOKENS, VOCAB, Batch, advance, batch, build, gradients, small
from tests.support.rounding import DRAWS, agree, apart, limits, nudged, spread

RANDOM: dict[str, Any] = {"dropout": 0.2, "state_dropout": 0.1, "noise": 0.02}
RECURRENT = tuple(name for name in PRESETS if name != "dense")


# Slots ----------------------------------------------------------------------------------------------------------------


@pytest.mark.numeric
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    "config", [small(**RANDOM), small("trm"), small("urm-one-state")], ids=["ponder", "trm", "urm"]
)
def test_a_slot_depends_neither_on_its_neighbours_nor_on_when_they_reset(config: ModelConfig, train: bool) -> None:
    model, steps = build(config).train(train), 3
    mine = batch(1, seed=7)

    def alone() -> list[Tensor]:
        carry, out = model.start(mine.keys), []
        for _ in range(steps):
            step = advance(model, mine, carry)
            carry = step.carry
            assert step.q_halt is not None
            out += [step.logits[0], step.q_halt[0]]
        return out

    with torch.no_grad():
        within, expected = limits(alone, model.state_dict().values()), alone()
        for resets in ([], [1], [0, 2], [0, 1, 2]):
            others = batch(4, seed=len(resets))
            index = torch.tensor([0, 1, -1, 2, 3])
            joined = Batch(*(torch.cat((getattr(others, f), getattr(mine, f)))[index] for f in Batch.__annotations__))
            carry, found = model.start(joined.keys), []
            for number in range(steps):
                if number in resets:
                    where = torch.tensor([True, number % 2 == 0, False, True, number % 2 == 1])
                    model.reset(carry, where.nonzero()[:, 0], joined.keys[where] + number + 1)
                step = advance(model, joined, carry)
                carry = step.carry
                assert step.q_halt is not None
                found += [step.logits[2], step.q_halt[2]]
            agree(found, expected, within)


@pytest.mark.numeric
def test_the_order_of_the_batch_does_not_matter() -> None:
    model, b = build(small(**RANDOM)).train(), batch(6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    def two_steps() -> list[Tensor]:
        first = advance(model, b)
        return [first.logits[order], advance(model, b, first.carry).logits[order]]

    with torch.no_grad():
        within, carry = limits(two_steps, model.state_dict().values()), advance(model, b).carry.take(order)
        permuted = [advance(model, b.take(order)).logits, advance(model, b.take(order), carry).logits]
        agree(permuted, two_steps(), within)


def test_reset_starts_over_exactly_the_slots_it_names() -> None:
    model, b = build(small()).eval(), batch(4)
    fresh = model.start(b.keys)
    with torch.no_grad():
        used = advance(model, b, advance(model, b).carry).carry
    where = torch.tensor([False, True, False, True])
    after = used.take(torch.arange(len(used.key)))
    model.reset(after, where.nonzero()[:, 0], b.keys[where] + 1)
    for name in ("h", "l"):
        old, start, new = (getattr(carry.states, name) for carry in (used, fresh, after))
        assert torch.equal(new[where], start[where])
        assert torch.equal(new[~where], old[~where])
    assert after.steps.tolist() == [2, 0, 2, 0]
    assert torch.equal(after.key, b.keys + where)


def test_a_forward_pass_changes_neither_carry_nor_model() -> None:
    model, b = build(small(**RANDOM)).train(), batch()
    carry = model.start(b.keys)
    assert carry.states.h is not None
    assert carry.states.l is not None
    before = [t.clone() for t in (carry.states.h, carry.states.l, carry.steps, carry.key)]
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    advance(model, b, carry).logits.sum().backward()
    after = (carry.states.h, carry.states.l, carry.steps, carry.key)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert attributes == {name: set(vars(module)) for name, module in model.named_modules()}


@pytest.mark.numeric
@pytest.mark.parametrize("name", RECURRENT)
def test_a_carry_survives_a_file(name: str, tmp_path: Path) -> None:
    model, b = build(small(name, **(RANDOM if name == "ponder" else {}))).train(), batch()
    with torch.no_grad():
        carry = advance(model, b, advance(model, b).carry).carry
        tensors = {"h": carry.states.h, "l": carry.states.l, "steps": carry.steps, "key": carry.key}
        save_file({k: t for k, t in tensors.items() if t is not None}, tmp_path / "carry.safetensors")
        read = load_file(tmp_path / "carry.safetensors")
        again = Carry(States(read.get("h"), read.get("l")), read["steps"], read["key"])
        assert torch.equal(advance(model, b, again).logits, advance(model, b, carry).logits)


# Padding --------------------------------------------------------------------------------------------------------------

MASKED = [
    pytest.param({}, id="rope"),
    pytest.param({"positions": "none"}, id="no-positions"),
    pytest.param({"mlp_conv": True}, id="mlp-conv"),
    pytest.param({"input_conv": True}, id="input-conv"),
    pytest.param({"modules": "separate"}, id="separate"),
]


def logits_at(length: int, config: ModelConfig, b: Batch, model: Reasoner | None = None) -> Tensor:
    """Logits at the real positions when the puzzles are padded to `length`, after two ACT steps."""
    model = model or build(config, tokens=length).eval()
    assert config.positions != "learned"  # all other weights have shapes that do not depend on the length
    padded = Batch(torch.nn.functional.pad(b.inputs, (0, length - TOKENS)), b.labels, b.task_ids, b.keys)
    with torch.no_grad():
        return advance(model, padded, advance(model, padded).carry).logits[:, :TOKENS]


@pytest.mark.numeric
@pytest.mark.parametrize("changes", MASKED)
def test_with_the_key_mask_the_amount_of_padding_does_not_matter(changes: dict[str, Any]) -> None:
    b, config = batch(), small(key_mask=True, **changes)
    model = build(config).eval()
    plain = logits_at(TOKENS, config, b, model)
    within = limits(lambda: [logits_at(TOKENS, config, b, model)], model.state_dict().values())
    for length in (TOKENS + 1, 3 * TOKENS, SHORT + 20):
        agree([logits_at(length, config, b)], [plain], within)


def test_without_the_key_mask_it_does() -> None:
    b, config = batch(), small(key_mask=False)
    assert apart(logits_at(3 * TOKENS, config, b), logits_at(TOKENS, config, b)) > 0.01


@pytest.mark.numeric
@pytest.mark.parametrize("changes", [*MASKED, pytest.param({"positions": "learned"}, id="learned-positions")])
def test_with_the_key_mask_what_stands_in_the_padding_does_not_matter(changes: dict[str, Any]) -> None:
    b = batch()
    b.inputs[0, 5:], b.inputs[1, 8:] = 0, 0
    real = b.inputs != 0
    for mask in (True, False):
        model = build(small(key_mask=mask, h_horizon=4, **changes)).train()
        step = advance(model, b)
        assert step.q_halt is not None
        value = step.logits[real].square().sum() + step.q_halt.square().sum()
        reaches = bool(gradients(model, value)["embed"][0].any())
        assert reaches is not mask
        with torch.no_grad():
            model.embed[0] += 1
        assert torch.equal(advance(model, b).logits[real], step.logits[real]) is mask


# Compilation and precision --------------------------------------------------------------------------------------------


def agrees_with_eager(config: ModelConfig, compiler: Callable[[Reasoner], None]) -> None:
    b = batch()
    eager, compiled = build(config).train(), build(config).train()
    names = list(compiled.state_dict())
    torch.compiler.reset()
    compiler(compiled)
    assert list(compiled.state_dict()) == names

    def two_steps(model: Reasoner) -> list[Tensor]:
        first = advance(model, b)
        second = advance(model, b, first.carry.detach())
        return [first.logits, second.logits, *gradients(model, second.logits.square().sum()).values()]

    agree(two_steps(compiled), two_steps(eager), limits(lambda: two_steps(eager), eager.state_dict().values()))
    torch.compiler.reset()


def compiled_by(backend: str) -> Callable[[Reasoner], None]:
    def apply(model: Reasoner) -> None:
        for module in model.modules():
            if isinstance(module, Layer):
                module.compile(backend=backend, dynamic=False, fullgraph=True)

    return apply


COMPILED = {
    "ponder": small(layers=1, **RANDOM, key_mask=True),
    "trm-mlp": small("trm-mlp", layers=1),
    "urm": small("urm", layers=1),
}


@pytest.mark.parametrize(
    ("backend", "config"),
    [
        *(pytest.param("eager", config, id=f"eager-{name}") for name, config in COMPILED.items()),
        # Tracing takes most of the time, and is the same on every processor: there, one of them is enough.
        *(
            pytest.param("aot_eager", config, id=f"aot_eager-{name}", marks=[pytest.mark.numeric] * (name == "ponder"))
            for name, config in COMPILED.items()
        ),
    ],
)
def test_compiled_blocks_agree_with_eager_ones(backend: str, config: ModelConfig) -> None:
    agrees_with_eager(config, compiled_by(backend))


@pytest.mark.numeric
@pytest.mark.slow
@pytest.mark.parametrize("config", list(COMPILED.values()), ids=list(COMPILED))
def test_the_default_compiler_agrees_with_eager(config: ModelConfig) -> None:
    agrees_with_eager(config, compile_blocks)


def trained(model: Reasoner, b: Batch, step_number: int = 2) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of a step and the gradients of the whole training loss."""
    second = model.config.states and step_number == 2
    step = advance(model, b, advance(model, b).carry.detach() if second else None)
    target = None
    if step.q_continue is not None:
        with torch.no_grad():
            after = advance(model, b, step.carry.detach())
            assert after.q_halt is not None
            assert after.q_continue is not None
            target = losses.continue_target(after.q_halt, after.q_continue, step.carry.steps >= 2)
    loss = losses.losses(step.logits, b.labels, step.q_halt, step.q_continue, target, 0.5)
    return step.logits, gradients(model, loss.total)


@pytest.mark.numeric
@pytest.mark.parametrize("name", PRESETS)
def test_bfloat16_autocast_is_finite_and_close_to_float32(name: str) -> None:
    torch.manual_seed(0)
    model, b = Reasoner(small(name, width=32), VOCAB, TOKENS, TASKS).train(), batch(16)

    def results() -> list[Tensor]:
        """Logits and all gradients of the first step: later ones are mostly what rounding made of it."""
        logits, found = trained(model, b, step_number=1)
        return [logits.float(), torch.cat([grad.flatten().float() for grad in found.values()])]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, step = results(), advance(model, b)
    assert step.q_halt is None or step.q_halt.dtype == torch.float32
    assert all(result.isfinite().all() for result in got)
    if name != "trm-mlp":  # whose trajectory amplifies rounding (tests/test_parity.py)
        moved = []
        for draw in range(DRAWS):
            with nudged(model.state_dict().values(), draw, part=2**-9):  # half of bfloat16's last bit
                moved.append(results())
        within = spread(results(), moved, slack=4)
        agree(got, results(), within)
        assert max(within) < 1


def test_bfloat16_carries_stay_bfloat16() -> None:
    model, b = build(small(**RANDOM)).train(), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = advance(model, b, model.start(b.keys, torch.bfloat16))
    assert step.carry.states.h is not None
    assert step.carry.states.l is not None
    assert step.carry.states.h.dtype == step.carry.states.l.dtype == torch.bfloat16


# Devices that cannot be tried here ------------------------------------------------------------------------------------


class NoDoubles(TorchDispatchMode):
    """MPS has no float64: no operation may make one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, list | tuple) else (out,):
            if isinstance(tensor, Tensor) and tensor.dtype in (torch.float64, torch.complex128):
                raise AssertionError(f"{func} makes {tensor.dtype}")
        return out


@pytest.mark.parametrize("length", [TOKENS, SHORT + 1])
@pytest.mark.parametrize("name", PRESETS)
def test_no_operation_of_training_makes_a_double(name: str, length: int) -> None:
    extra = {**RANDOM, "key_mask": True, "input_conv": True} if name == "ponder" else {}
    model, b = build(small(name, layers=1, **extra), tokens=length).train(), batch(2, length)
    with NoDoubles():  # type: ignore[no-untyped-call]
        trained(model, b)


def test_that_check_sees_doubles() -> None:
    with pytest.raises(AssertionError, match="float64"), NoDoubles():  # type: ignore[no-untyped-call]
        torch.ones(2).double()


@pytest.mark.parametrize("name", PRESETS)
def test_the_meta_device_runs_a_training_step(name: str) -> None:
    extra = {**RANDOM, "key_mask": True, "input_conv": True} if name == "ponder" else {}
    with torch.device("meta"):
        model = Reasoner(small(name, **extra), VOCAB, TOKENS, TASKS).train()
        b = Batch(*(t.to("meta") for t in (lambda x: (x.inputs, x.labels, x.task_ids, x.keys))(batch())))
        logits, found = trained(model, b)
        reset = model.start(b.keys.clone())
        model.reset(reset, torch.arange(2), b.keys[:2])
    assert logits.shape == (3, TOKENS, VOCAB)
    assert {t.device.type for t in (logits, reset.key, *found.values())} == {"meta"}


SOURCES = [
    *sorted((Path(ponder.__file__).parent / "model").glob("*.py")),
    *(Path(ponder.__file__).parent / name for name in ("base/rng.py",)),
]
ALLOWED = {("attention.py", "cpu"), ("kernels.py", "cpu"), ("published.py", "cpu")}
"""The choice of a kernel for attention and for all else, and reading a file into main memory."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_device_and_no_double_is_written_in_model_code(path: Path) -> None:
    assert {p.name for p in SOURCES} >= {"products.py", "attention.py", "recurrence.py", "reasoner.py", "published.py"}
    devices = ("cpu", "cuda", "mps", "xpu", "hip")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = node.value.partition(":")[0]
            assert kind not in devices or (path.name, kind) in ALLOWED, f"{path}:{node.lineno} names {node.value!r}"
        if isinstance(node, ast.Attribute):
            forbidden = ("cuda", "mps", "double", "float64", "complex128")
            assert node.attr not in forbidden, f"{path}:{node.lineno} uses .{node.attr}"


@pytest.mark.parametrize("name", ["attention.py", "kernels.py"])
def test_a_device_is_compared_with_and_never_made(name: str) -> None:
    """`x.device.type == "cpu"` chooses a kernel; nothing is put anywhere."""
    tree = ast.parse(next(p for p in SOURCES if p.name == name).read_text(encoding="utf-8"))
    compared = {id(c) for node in ast.walk(tree) if isinstance(node, ast.Compare) for c in node.comparators}
    literals = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value == "cpu"]
    assert literals
    assert all(id(node) in compared for node in literals)
