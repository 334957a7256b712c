"""One configuration out of many parts: defaults <- domain preset <- model preset <- dotted overrides.

A preset is a YAML difference from the defaults. Its `recipe` (a model preset, and what goes with it) is what it trains
when nothing else is asked for; another model asked for takes its place. The result is resolved once and frozen.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, Field, SerializeAsAny, model_validator
from pydantic_core import to_jsonable_python

from ponder.base import files
from ponder.base.errors import UserError, unknown
from ponder.config.schema import EvalConfig, Frozen, ModelConfig, TrainConfig, parse
from ponder.domains import registry
from ponder.domains.contract import Domain, Params

PRESETS = Path(__file__).parents[1] / "presets"
LABELS = ("preset", "scale", "about", "model.name")
WITHOUT_EFFECT = ("train.save_every", "train.data_workers", "train.trackers")
"""With labels, what no key counts. All else may change the last bits (compile, eval.batch) or what is kept of a
training (log_every, eval.examples)."""
LARGEST, DEEPEST, REPEATED = 2**20, 50, 100
"""Bytes of a YAML file, how deep it may nest, and how often a part may stand for another."""


LONGEST = 1000
"""Characters of a value on the command line."""


class DataConfig(Frozen):
    """In YAML and on the command line the domain's own parameters stand beside `domain` and `seed`."""

    domain: str = Field(description="which kind of puzzle")
    seed: int = Field(0, ge=0, description="of what is generated, drawn or split off")
    augment: bool = Field(False, description="training examples under a symmetry of the domain, another each epoch")
    params: SerializeAsAny[Params]

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or isinstance(value.get("params"), Params):
            return value
        name = str(value.get("domain"))
        domain = registry.find(name)
        own = {k: v for k, v in value.items() if k in ("domain", "seed", "augment")}
        parsed = parse(domain.Params, {k: v for k, v in value.items() if k not in own}, "data")
        return {"seed": 0, **own, "params": parsed}

    def stored(self) -> "DataConfig":
        """What determines a dataset's bytes: symmetries on the fly are applied to the same files."""
        return self.model_copy(update={"augment": False})

    def make(self) -> Domain:
        return registry.find(self.domain)(self.params)

    def flat(self) -> dict[str, Any]:
        augment = {"augment": True} if self.augment else {}
        return {"domain": self.domain, "seed": self.seed, **augment, **self.params.model_dump(mode="json")}


class Config(Frozen):
    preset: str = Field(description="the preset's name; a label only")
    scale: Literal["mini", "paper"] = Field(description="which form of a model's recipe it takes")
    about: str = Field("", description="what it is, in a line; a label only")
    seed: int = Field(0, ge=0, lt=2**32, description="initial weights, data order, dropout, noise, exploration")
    data: DataConfig
    model: ModelConfig = ModelConfig()
    train: TrainConfig
    eval: EvalConfig = EvalConfig()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for name in ("corrupt", "fixpoint_weight", "winners"):
            if self.model.states == 0 and getattr(self.train, name) != TrainConfig.model_fields[name].default:
                raise ValueError(f"train.{name} is about the state, and a model with model.states 0 has none")
        model = self.model
        if model.symbols == "equivariant" and self.train.corrupt:
            raise ValueError("train.corrupt embeds answers, which model.symbols equivariant has no embedding for")
        if self.train.answers == "nearest" and (model.halting == "asked" or self.train.winners > 1):
            raise ValueError("train.answers nearest needs halting by the model and winners 1: set it to label")
        if model.halting == "asked" and (self.train.supervise != "every" or self.train.winners > 1):
            raise ValueError("model.halting asked has an answer for every step: set train.supervise every, winners 1")
        if self.train.winners > 1 and model.init == "fixed" and not model.noise + model.dropout + model.state_dropout:
            raise ValueError(
                f"train.winners {self.train.winners}: all states of an example would be the same; set model.init to "
                f"random, or noise or dropout"
            )
        return self

    def flat(self) -> dict[str, Any]:
        """Plain data that `resolve` of the same version reads back."""
        out = self.model_dump(mode="json")
        out["data"] = self.data.flat()
        return out

    def key(self) -> str:
        """A hash of what determines the result of training, as far as it is not the schema's default: a new switch that
        is off changes no key, but another default changes what keys mean (tests/config/defaults.json)."""
        return hashlib.sha256(json.dumps(_changed(self), sort_keys=True).encode()).hexdigest()[:12]


def _changed(model: BaseModel, above: str = "") -> dict[str, Any]:
    """Field -> value, of all that a key counts."""
    out: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value, default = getattr(model, name), field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel):
            inner = _changed(value, f"{above}{name}.")
            if inner or not isinstance(default, BaseModel):
                out[name] = inner
        elif value != default and above + name not in (*LABELS, *WITHOUT_EFFECT):
            out[name] = to_jsonable_python(value)
    return out


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out


def preset_names() -> list[str]:
    return sorted({path.stem for path in (*PRESETS.glob("*.yaml"), *registry.presets())})


def model_names() -> list[str]:
    return sorted(p.stem for p in (PRESETS / "models").glob("*.yaml"))


def _read(folder: Path, name: str, kind: str, plain: bool = False) -> dict[str, Any]:
    path = folder / f"{name}.yaml"
    if not path.is_file() and kind == "preset":
        path = next((each for each in registry.presets() if each.stem == name), path)
    if not path.is_file():
        raise unknown(kind, name, preset_names() if kind == "preset" else model_names())
    return _put_together(read_yaml(path), folder, kind, plain)


def _put_together(data: dict[str, Any], folder: Path, kind: str, plain: bool) -> dict[str, Any]:
    """A file on top of the one it extends, and, where no other model is asked for, its `recipe` on top of both."""
    parent, recipe = data.pop("extends", None), data.pop("recipe", None)
    if parent:
        data = merge(_read(folder, parent, kind, plain), data)
    recipe = _keys("recipe", {} if recipe is None else recipe)
    if recipe and plain:
        recipe = dict(recipe)
        model = _model_for(recipe.pop("model"), data) if "model" in recipe else {}
        apart = {"model": recipe.pop("but", {})}  # where the model differs from its own preset
        data = merge(merge(data, model), {**recipe, **apart})
    return data


class _Loader(yaml.SafeLoader):
    """YAML of a stranger: no deeper than anybody would write it, and with few parts that stand for others, none of them
    in such a part itself: a few lines could hold more than memory does."""

    depth = named = repeated = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        alias = isinstance(event, yaml.AliasEvent)
        self.repeated += alias
        if self.depth > DEEPEST or self.repeated > REPEATED or (alias and self.named):
            raise yaml.YAMLError(f"it nests more than {DEEPEST} deep, or repeats its parts too often")
        names = not alias and event.anchor is not None
        self.depth, self.named = self.depth + 1, self.named + names
        node = super().compose_node(parent, index)
        self.depth, self.named = self.depth - 1, self.named - names
        return node


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """Studies put the same few presets together hundreds of times."""
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = deepcopy(_parsed(files.read(path, LARGEST).decode()))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path} is not YAML that can be read: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} should hold keys and values")
    return data


def _own_file(name: str, kind: str) -> Path | None:
    """The file of a preset or model that is given by its path."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        return None
    if not path.is_file():
        raise UserError(f"there is no {kind} file {name}")
    return path


def model_preset(name: str, scale: str, domain: str | None = None) -> dict[str, Any]:
    """A model's own recipe, by name or as a YAML file of that form; at mini scale its mini form where there is one, at
    paper scale with what its authors published for this domain."""
    folder = PRESETS / "models"
    if (own := _own_file(name, "model")) is not None:
        named = merge({"model": {"name": own.stem}}, read_yaml(own))
        recipe = _put_together(named, folder, "model", plain=False)
    else:
        mini = scale == "mini" and (folder / f"{name}-mini.yaml").is_file()
        recipe = _read(folder, f"{name}-mini" if mini else name, "model")
    published = _keys("published", recipe.pop("published", {}))
    return merge(recipe, _keys(f"published.{domain}", published.get(domain, {}))) if scale == "paper" else recipe


def _model_for(model: object, data: Mapping[str, Any]) -> dict[str, Any]:
    """The model's recipe on this preset, whose own mistakes are named when it is parsed."""
    if not isinstance(model, str):
        raise UserError(f"recipe.model: should be a name, got {model!r}")
    section = data.get("data", {})
    domain = section.get("domain") if isinstance(section, Mapping) else None
    return model_preset(model, data.get("scale", "paper"), domain if isinstance(domain, str) else None)


def _keys(name: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{name}: should hold keys and values, got {value!r}")
    return value


def resolve(preset: str, model: str | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """A named preset, or a YAML file of the same form, with another model and overrides put on top."""
    if (own := _own_file(preset, "preset")) is not None:
        data = {"preset": own.stem, **_put_together(read_yaml(own), PRESETS, "preset", plain=model is None)}
    else:
        data = {**_read(PRESETS, preset, "preset", plain=model is None), "preset": preset}
    if model is not None:
        data = merge(data, _model_for(model, data))
    return from_flat(merge(data, overrides or {}))


def from_flat(data: Mapping[str, Any]) -> Config:
    return parse(Config, data)


def differences(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> the two values, for every value that differs (labels aside)."""
    flat_a, flat_b = _dotted(a.flat()), _dotted(b.flat())
    keys = [k for k in {**flat_a, **flat_b} if k not in LABELS]
    return {k: (flat_a.get(k), flat_b.get(k)) for k in keys if flat_a.get(k) != flat_b.get(k)}


def _dotted(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            out |= _dotted(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """`--train.lr 1e-3 --data.size=6` -> nested dict. Values are read as YAML; types are checked by the schema."""
    out: dict[str, Any] = {}
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise UserError(f"unexpected argument {word!r}: overrides are written --section.key value")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise UserError(f"{word} has no value: write {word} VALUE")
            text = words.pop(0)
        sections = ("data", "model", "train", "eval")
        first = key.split(".")[0]
        if key != "seed" and (first not in sections or "." not in key):
            near = _nearest_path(key)
            hint = f"did you mean --{near}? " if near else ""
            raise UserError(
                f"unknown option --{key}: {hint}overrides are --seed or --SECTION.KEY with SECTION one of "
                f"{', '.join(sections)}"
            )
        at = out
        *parents, last = key.replace("-", "_").split(".")
        for part in parents:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise UserError(f"--{key} goes on where an option before it gave a value: leave out one of them")
        if isinstance(at.get(last), dict):
            raise UserError(f"--{key} gives a value to what an option before it goes on from: leave out one of them")
        at[last] = _value(key, text)
    return out


def _nearest_path(key: str) -> str | None:
    paths = [
        f"{s}.{f}"
        for s, c in (("model", ModelConfig), ("train", TrainConfig), ("eval", EvalConfig))
        for f in c.model_fields
    ]
    exact = [p for p in paths if p.split(".")[1] == key.replace("-", "_")]
    near = exact or difflib.get_close_matches(key, paths, n=1, cutoff=0.6)
    return near[0] if near else None


def _value(key: str, text: str) -> Any:
    if len(text) > LONGEST:
        raise UserError(f"--{key} has a value of {len(text)} characters: at most {LONGEST} are possible")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    except (ValueError, RecursionError):  # a date that is none, brackets in brackets
        raise UserError(f"--{key} has a value that cannot be read: {text}") from None
    if isinstance(value, str):
        try:
            return float(value)  # YAML reads 3e-4 as text
        except ValueError:
            return value
    return value
