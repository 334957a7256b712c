"""A field of the configuration that nothing reads is a promise that nothing keeps."""

import ast
from pathlib import Path

import pytest
from pydantic import BaseModel

import ponder
from ponder.config import Config, DataConfig, EvalConfig, ModelConfig, TrainConfig

SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
    "data": DataConfig,
}


def _last(node: ast.expr) -> str | None:
    """The last name of `a.b.c` or of `a`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def reads(source: str, section: str, cls: str) -> set[str]:
    """Attributes read from what is a configuration of that section, by annotation, assignment or name."""
    tree = ast.parse(source)
    names = {section}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.arg | ast.AnnAssign)
            and node.annotation is not None
            and cls in ast.unparse(node.annotation)
        ):
            names.add(node.arg if isinstance(node, ast.arg) else str(_last(node.target)))
        if isinstance(node, ast.Assign):
            targets = node.targets[0]
            pairs = (
                zip(targets.elts, node.value.elts, strict=False)
                if isinstance(targets, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(targets, node.value)]
            )
            for target, value in pairs:
                made = isinstance(value, ast.Call) and _last(value.func) == cls
                if (isinstance(value, ast.Attribute) and value.attr == section) or made:
                    names.add(str(_last(target)))
    if cls == "ModelConfig":
        names.add("config")  # a Reasoner's own
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _last(node.value) in names
    }


def everywhere(section: str, cls: str) -> set[str]:
    root = Path(ponder.__file__).parent
    files = [path for path in root.rglob("*.py") if path != root / "config.py"]
    return set().union(*(reads(path.read_text(), section, cls) for path in files))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_read_somewhere(section: str) -> None:
    cls = SECTIONS[section]
    unread = set(cls.model_fields) - everywhere(section, cls.__name__)
    assert not unread, f"{cls.__name__} has fields that nothing in ponder/ reads: {sorted(unread)}"


def test_the_sections_are_all_there() -> None:
    nested = {name for name, field in Config.model_fields.items() if isinstance(field.annotation, type(BaseModel))}
    assert nested == set(SECTIONS)


def test_the_scan_tells_reading_from_not_reading() -> None:
    source = """
def f(config: TrainConfig, other):
    t, m = whole.train, whole.model
    config.lr; t.clip; x.train.ema; other.warmup; config.beta1 = 3
"""
    assert reads(source, "train", "TrainConfig") == {"lr", "clip", "ema"}
