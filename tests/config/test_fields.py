"""A field of the configuration that nothing reads is a promise that nothing keeps."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

import ponder
from ponder.config.resolve import Config
from ponder.config.schema import EvalConfig, ModelConfig, TrainConfig
from ponder.domains.registry import BUILT_IN

SECTIONS: dict[str, type[BaseModel]] = {"model": ModelConfig, "train": TrainConfig, "eval": EvalConfig}


def _last(node: ast.expr) -> str | None:
    """The last name of `a.b.c` or of `a`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _assigned(tree: ast.AST) -> list[tuple[str, ast.expr]]:
    """(name, value) of every assignment, those of tuples one by one."""
    out = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            out += [(str(_last(t)), v) for t, v in zip(target.elts, value.elts, strict=False)]
        else:
            out.append((str(_last(target)), value))
    return out


@dataclass(frozen=True)
class Uses:
    """What a source does with names, as far as it matters here."""

    annotated: list[tuple[str, str]]
    """(argument, its annotation)"""
    assigned: list[tuple[str, str | None]]
    """(name, the last name of its value)"""
    loaded: list[tuple[str | None, str]]
    """(the last name of what it is of, attribute)"""


@cache
def uses(source: str) -> Uses:
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    return Uses(
        [(n.arg, ast.unparse(n.annotation)) for n in nodes if isinstance(n, ast.arg) and n.annotation is not None],
        [(name, _last(value)) for name, value in _assigned(tree)],
        [(_last(n.value), n.attr) for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)],
    )


def reads(source: str, section: str, cls: str) -> set[str]:
    """Attributes read from what is a configuration of that section, by annotation, assignment or name."""
    found = uses(source)
    names = {section, "config"} if cls == "ModelConfig" else {section}  # `config` is a Reasoner's own
    names |= {name for name, annotation in found.annotated if cls in annotation}
    while more := {name for name, value in found.assigned if value in names} - names:
        names |= more
    return {attribute for of, attribute in found.loaded if of in names}


def everywhere(section: str, cls: str) -> set[str]:
    root = Path(ponder.__file__).parent
    files = [path for path in root.rglob("*.py") if path.parent != root / "config"]
    return set().union(*(reads(path.read_text(encoding="utf-8"), section, cls) for path in files))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_read_somewhere(section: str) -> None:
    cls = SECTIONS[section]
    unread = set(cls.model_fields) - everywhere(section, cls.__name__)
    assert not unread, f"{cls.__name__} has fields that nothing in ponder/ reads: {sorted(unread)}"


def test_the_sections_are_all_there() -> None:
    nested = {name for name, field in Config.model_fields.items() if isinstance(field.annotation, type(BaseModel))}
    assert nested == {*SECTIONS, "data"}


@pytest.mark.parametrize("domain", BUILT_IN)
def test_every_parameter_of_a_domain_is_read_somewhere(domain: str) -> None:
    cls, build = BUILT_IN[domain].Params, BUILT_IN[domain].build
    by_split = set(BUILT_IN[domain].splits) if "shared_out" in build.__code__.co_names else set()
    unread = set(cls.model_fields) - everywhere("params", cls.__name__) - by_split
    assert not unread, f"{cls.__name__} has fields that nothing in ponder/ reads: {sorted(unread)}"


def test_the_scan_tells_reading_from_not_reading() -> None:
    source = """
def f(config: TrainConfig, other):
    t, m = whole.train, whole.model
    again = t
    config.lr; t.clip; x.train.ema; again.batch; other.warmup; config.beta1 = 3; m.width
"""
    assert reads(source, "train", "TrainConfig") == {"lr", "clip", "ema", "batch"}
