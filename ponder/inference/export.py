"""One ACT step as an ONNX graph, the carry in and out, for runtimes without PyTorch.

The loop over ACT steps stays with the caller, who decides when to stop (docs/onnx.md has one in twenty lines).
"""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ponder.base import files
from ponder.base.errors import UserError, needs_extra
from ponder.inference.weights import Opened, open_weights
from ponder.model.reasoner import Carry, Reasoner
from ponder.model.recurrence import States

TRACED = 2
"""Batch size while tracing a dynamic batch; 0 and 1 would be taken for constants."""
STATES = ("z_H", "z_L")


class OneStep(nn.Module):
    """An ACT step as a function of plain tensors: tokens, task ids, states -> logits, halting logits, states.

    A model that takes the number of steps from the puzzle is told how many are done, and says whether that is all.
    """

    def __init__(self, model: Reasoner) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, task_ids: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        nothing = torch.zeros_like(task_ids)  # the key, and the step count of others, matter to dropout and noise only
        steps, *states = rest if self.model.asked is not None else (nothing, *rest)
        step = self.model(Carry(States.of(states), steps, nothing), tokens, self.model.table[task_ids])
        out = (step.logits, step.q_halt, step.q_continue, step.over, *step.carry.states.held)
        return tuple(tensor for tensor in out if tensor is not None)


def describe(opened: Opened, batch: int | None, int8: bool = False) -> dict[str, Any]:
    """What one needs to know to run the graph: names, shapes, the vocabulary, the states to start from."""
    model, domain = opened.model, opened.domain
    config = model.config
    rows: int | str = "batch" if batch is None else batch
    state = [rows, model.length, config.width]
    halting = {"halt": ["q_halt"], "halt+continue": ["q_halt", "q_continue"]}.get(config.halting, [])
    held = STATES[: config.states]
    asked = model.asked is not None
    return {
        "format": "ponder-step-1",
        "model": opened.name,
        "weights_sha256": opened.sha256,
        "products": "int8" if int8 else "float32",
        "domain": None if domain is None else domain.name,
        "params": None if domain is None else domain.params.model_dump(mode="json"),
        "vocabulary": None if domain is None else list(domain.vocab),
        "task_ids": len(model.table),
        "max_steps": config.max_steps,
        "inputs": {
            "tokens": {"type": "int64", "shape": [rows, model.tokens]},
            "task_ids": {"type": "int64", "shape": [rows]},
            **({"steps": {"type": "int64", "shape": [rows]}} if asked else {}),
            **{name: {"type": "float32", "shape": state} for name in held},
        },
        "outputs": {
            "logits": {"type": "float32", "shape": [rows, model.tokens, model.vocab]},
            **{name: {"type": "float32", "shape": [rows]} for name in halting},
            **({"over": {"type": "bool", "shape": [rows]}} if asked else {}),
            **{f"new_{name}": {"type": "float32", "shape": state} for name in held},
        },
        "carry": {name: f"new_{name}" for name in held},
        "initial": {
            name: getattr(model, buffer).tolist() for name, buffer in zip(held, ("init_h", "init_l"), strict=False)
        },
    }


def export(where: str | Path | Opened, file: Path, batch: int | None = None, int8: bool = False) -> dict[str, Any]:
    """Write `file` and the description beside it, `file`.json; the description. No `batch`: any size at run time.

    `int8`: products with weights in 8 bits (docs/onnx.md says what that costs)."""
    opened = where if isinstance(where, Opened) else open_weights(where)
    if file.suffix != ".onnx":
        raise UserError(f"{file} does not end in .onnx: give the graph a name like {file.name or 'model'}.onnx")
    if not file.parent.is_dir():
        raise UserError(f"cannot write {file}: there is no folder {file.parent}")
    if opened.model.config.init == "random":
        raise UserError(
            f"{opened.name} starts from random states, which the graph does not draw: export one with init fixed"
        )
    about = describe(opened, batch, int8)
    size = TRACED if batch is None else batch
    carry = opened.model.start(torch.zeros(size, dtype=torch.int64))
    rest = [*([carry.steps] if opened.model.asked is not None else []), *carry.states.held]
    tokens = torch.ones(size, opened.model.tokens, dtype=torch.int64)
    free = None if batch is not None else {0: torch.export.Dim("batch")}
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            OneStep(opened.model).eval(),
            (tokens, torch.zeros(size, dtype=torch.int64), *rest),
            input_names=list(about["inputs"]),
            output_names=list(about["outputs"]),
            dynamic_shapes=None if free is None else (free, free, *([(free,) * len(rest)] if rest else [])),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # where in the source it comes from, paths included: half of the file
        program.model.metadata_props["ponder"] = json.dumps(about)
        try:
            program.save(file)
            if int8:
                quantise(file)
            files.write_json(file.with_name(file.name + ".json"), about)
        except OSError as error:
            raise UserError(f"cannot write {file} ({error.strerror}): choose another --onnx") from None
    return about


def quantise(file: Path) -> None:
    """Products with weights in 8 bits: weights once, a scale for each column, what meets them anew at each product."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folded = file.with_name(f".{file.name}.folded")
    try:
        # Weights are split and transposed in the graph: only what is folded into constants can be quantised.
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folded)
        onnxruntime.InferenceSession(str(file), options)
        graph = onnx.load(folded)
    finally:
        folded.unlink(missing_ok=True)
    kept = {prop.key: prop.value for prop in graph.metadata_props}
    graph.graph.ClearField("value_info")  # shapes from before the folding
    settings = {"per_channel": True, "weight_type": QuantType.QInt8, "extra_options": {"MatMulConstBOnly": True}}
    quantize_dynamic(graph, file, op_types_to_quantize=["MatMul"], **settings)
    graph = onnx.load(file)
    onnx.helper.set_model_props(graph, kept)
    onnx.save(graph, file)


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter warns about packages that it does not need and about its own future."""
    try:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise needs_extra("export", "onnx") from None
    names = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", None)  # the quantiser takes the root's
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
