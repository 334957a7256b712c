"""Studies: a question, variants that each change one declared factor, and the cells (one training each) they come to.

A study is `studies/NAME.yaml`, here or in the working directory; the tasks that studies share, with their sizes, are in
`_tasks.yaml` of the same two folders. A cell's key is that of its configuration, so that what several studies need is
trained once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ponder.base.errors import UserError, unknown
from ponder.config.resolve import Config, differences, merge, read_yaml, resolve
from ponder.config.schema import Frozen, parse
from ponder.domains.registry import find as find_domain

STUDIES = Path(__file__).parent
OWN = Path("studies")
"""Where users put theirs, in the working directory."""
TASKS = "_tasks.yaml"
SCALES = ("smoke", "mini", "paper-smoke", "paper")
"""`smoke` and `paper-smoke` are the mini and the paper form shrunk to seconds, to see that a study runs."""
EXAMPLES = {"smoke": 8, "mini": 1000, "paper-smoke": 8, "paper": 10_000}
Form = Literal["mini", "paper"]

Settings = dict[str, Any]
"""Dotted key -> value, as `--section.key value` of the command line."""
WeightSet = Literal["ema", "online"]
SEARCHES = ((1, 1), (1, 4), (2, 2), (4, 1))
"""Restarts, and the depth of each in ACT budgets: the plain budget, and four of it spent on depth, both or breadth."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]

SMOKE: Settings = {
    "model.width": 16,
    "model.heads": 2,
    "train.batch": 8,
    "train.updates": 4,
    "train.epochs": None,
    "train.warmup": 1,
    "train.log_every": 2,
    "train.eval_every": 4,
    "train.save_every": 2,
    "eval.examples": 4,
    "eval.batch": 16,
}
SMOKE_STEPS = 6
NARROWER, FEWER = 32, 4
"""What the paper's width, and its heads and ACT steps, are divided by, a variant's own too."""


class StudyTask(Frozen):
    preset: str
    model: str | None = Field(None, description="model preset put on top, unless the variant names one")
    set: Settings = Field({}, description="held fixed for all variants")
    smoke: Settings = Field({}, description="what makes its puzzles small enough for the smoke form")


class ChangedTask(Frozen):
    """A task of a study; in YAML just its name where nothing is changed."""

    task: str
    form: str | None = Field(None, description="the entry of _tasks.yaml to take, if not the one of its name")
    set: Settings = Field({})
    seeds: tuple[Seed, ...] | None = Field(None, min_length=1, description="instead of the study's")


class After(Frozen):
    """What is measured once the training is over."""

    steps: int | None = Field(None, ge=1, description="forced depth profile to so many steps; null: the ACT budget")
    weights: tuple[WeightSet, ...] = Field(("ema",), description="weights that get the profile")
    policies: bool = Field(False, description="accuracy against compute of every halting policy")
    search: bool = Field(False, description="restarts by every rule, with each of `SEARCHES`")
    trace: bool = Field(False, description="what `ponder trace` sees of a few examples up to the ACT budget")


class Scale(Frozen):
    tasks: tuple[str | ChangedTask, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    threads: int = Field(1, ge=1, description="of one cell; part of the study because results depend on it")
    after: After | None = Field(None, description="instead of the study's")


class Variant(Frozen):
    title: str | None = None
    from_: str | None = Field(None, alias="from", description="the variant this one is a difference from")
    model: str | None = None
    set: Settings = Field({})
    at: dict[Form, Settings] = Field({}, description="what is set at one scale only")
    only: dict[Form, tuple[str, ...]] = Field({}, description="the tasks it is trained on at a scale, if not all")


@dataclass(frozen=True)
class Cell:
    """One training and what is measured after it."""

    study: str
    scale: str
    task: str
    variant: str
    seed: int
    config: Config
    after: After
    threads: int

    @property
    def key(self) -> str:
        """What determines the result: the configuration, and the number of threads, which changes the last bits."""
        return self.config.key() + (f"-t{self.threads}" if self.threads > 1 else "")

    @property
    def examples(self) -> int:
        """At most so many of each split are measured after training: the same ones for every variant."""
        return EXAMPLES[self.scale]

    @property
    def label(self) -> str:
        return f"{self.study}/{self.variant}/{self.task}/s{self.seed}"


class Study(Frozen):
    name: str
    title: str
    asks: str
    paper: str | None = Field(description="the paper's section, by its label; null: beyond the paper")
    factor: tuple[str, ...] = Field(min_length=1, description="the only keys a variant may change; `model`: all of it")
    baseline: str
    variants: dict[str, Variant] = Field(min_length=1)
    scales: dict[Form, Scale]
    after: After = After()
    looks: int = Field(
        1, ge=1, description="times its verdicts were read, this one among them, before seeds were added"
    )
    # The report reads and checks these (ponder/reports).
    measure: Any = None
    paper_numbers: Any = None
    figure: Any = None
    findings: Any = None

    def has(self, scale: str) -> bool:
        return form(scale) in self.scales

    def scale(self, scale: str) -> Scale:
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        if not self.has(scale):
            raise UserError(f"study {self.name} has no scale {scale!r}: allowed: {', '.join(self.scales)}")
        return self.scales[form(scale)]

    def cells(self, scale: str = "mini") -> list[Cell]:
        """All cells, seeds outermost, so that a study half run has whole seeds of all variants."""
        plan = self.scale(scale)
        own = {t.task: t.seeds for t in plan.tasks if isinstance(t, ChangedTask) and t.seeds is not None}
        seeds = {task: own.get(task, plan.seeds) for task in self._tasks(scale)}
        every = list(dict.fromkeys(seed for some in seeds.values() for seed in some))
        configs = {task: self._configs(task, changed, scale) for task, changed in self._tasks(scale).items()}
        return [
            Cell(
                study=self.name,
                scale=scale,
                task=task,
                variant=variant,
                seed=seed,
                config=config.model_copy(update={"seed": seed}),
                after=self.measured(scale),
                threads=plan.threads,
            )
            for seed in (every[:1] if is_smoke(scale) else every)
            for task, variants in configs.items()
            if seed in seeds[task]
            for variant, config in variants.items()
        ]

    def measured(self, scale: str) -> After:
        """What it asks for once a training is over."""
        after = self.scale(scale).after or self.after
        return _shallow(after) if is_smoke(scale) else after

    def _tasks(self, scale: str) -> dict[str, StudyTask]:
        """The study's tasks, each with what the study changes in it."""
        known, out = load_tasks(form(scale)), {}
        for entry in self.scale(scale).tasks:
            named = ChangedTask(task=entry) if isinstance(entry, str) else entry
            wanted = named.form or named.task
            if wanted not in known:
                raise unknown(f"task in study {self.name}", wanted, known)
            task = known[wanted]
            out[named.task] = task.model_copy(update={"set": merge(nested(task.set), nested(named.set))})
        return out

    def _configs(self, name: str, task: StudyTask, scale: str) -> dict[str, Config]:
        """Variant -> configuration on one task. Refuses a variant that is not what the study declares."""
        configs = {}
        trained = [v for v, about in self.variants.items() if name in about.only.get(form(scale), (name,))]
        for variant in trained:
            try:
                configs[variant] = self._config(variant, task, scale)
            except UserError as error:
                raise UserError(f"study {self.name}, variant {variant!r}, {scale} {name}: {error}") from None
        base = configs[self.baseline]
        same: dict[str, str] = {}
        for variant, config in configs.items():
            outside = [k for k in differences(base, config) if not self._declared(k)]
            if outside:
                old, new = differences(base, config)[outside[0]]
                raise UserError(
                    f"study {self.name}, variant {variant!r}, {scale} {name}: changes {outside[0]} ({old!r} -> "
                    f"{new!r}), which is not its factor ({', '.join(self.factor)}): declare it, or leave it alone"
                )
            other = same.setdefault(config.key(), variant)
            if other != variant and not is_smoke(scale):  # shrunk, two sizes may come out the same
                raise UserError(
                    f"study {self.name}: variants {other!r} and {variant!r} are the same on {scale} {name}: "
                    f"change something in one of them"
                )
        return configs

    def _declared(self, key: str) -> bool:
        return any(key == f or key.startswith(f"{f}.") for f in self.factor)

    def _config(self, variant: str, task: StudyTask, scale: str) -> Config:
        lineage = self.lineage(variant)
        model = next((v.model for v in reversed(lineage) if v.model is not None), task.model)
        layers = [task.set]
        if is_smoke(scale):
            layers += [_smoke(task), task.smoke]
        for each in lineage:
            layers += [each.set, each.at.get(form(scale), {})]
        if scale == "paper-smoke":  # a variant may have a width of its own
            full = resolve(task.preset, model, reduce(merge, map(nested, [task.set, *layers[3:]]))).model
            less = {"heads": full.heads // FEWER, "max_steps": -(-full.max_steps // FEWER)}
            layers.append({"model": {"width": full.width // NARROWER, **less}})
        return resolve(task.preset, model, reduce(merge, map(nested, layers)))

    def lineage(self, variant: str) -> list[Variant]:
        """The variant and those it is a difference from, the first one first."""
        names = [variant]
        while (parent := self.variants[names[-1]].from_) is not None:
            if parent in names or parent not in self.variants:
                raise UserError(
                    f"study {self.name}: variant {names[-1]!r} is from {parent!r}, which is "
                    f"{'a circle' if parent in names else 'not a variant'}: name one of {', '.join(self.variants)}"
                )
            names.append(parent)
        return [self.variants[name] for name in reversed(names)]


def form(scale: str) -> Form:
    """The form of a study that a scale runs, whole or shrunk."""
    return "paper" if scale.startswith("paper") else "mini"


def is_smoke(scale: str) -> bool:
    return scale.endswith("smoke")


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"model.width": 16} -> {"model": {"width": 16}}"""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        out = merge(out, reduce(lambda inner, part: {part: inner}, reversed(key.split(".")), value))
    return out


def _smoke(task: StudyTask) -> Settings:
    """What shrinks a task to seconds; a variant's own settings go on top."""
    return {**SMOKE, "data": find_domain(resolve(task.preset).data.domain).smoke}


def _shallow(after: After) -> After:
    return after.model_copy(update={"steps": None if after.steps is None else min(after.steps, SMOKE_STEPS)})


# Reading the files ----------------------------------------------------------------------------------------------------


def _files() -> dict[str, Path]:
    """Name -> file."""
    shipped, own = ({p.stem: p for p in f.glob("*.yaml") if not p.name.startswith("_")} for f in (STUDIES, OWN))
    if both := sorted({*shipped} & {*own}):
        raise UserError(f"{own[both[0]]} has the name of a study that comes with ponder: rename it")
    return {**shipped, **own}


def shared(file: str) -> dict[str, Any]:
    """What `_tasks.yaml` or `_scores.yaml` has for all studies, with what the working directory's own adds."""
    shipped = read_yaml(STUDIES / file)
    own = read_yaml(OWN / file) if (OWN / file).is_file() else {}
    if both := sorted({*shipped} & {*own}):
        raise UserError(f"{OWN / file} has {both[0]!r}, a name that comes with ponder: rename it")
    return {**shipped, **own}


def names() -> list[str]:
    return sorted(_files())


def load(name: str) -> Study:
    files = _files()
    if name not in files:
        raise unknown("study", name, files)
    path = files[name]
    try:
        study = parse(Study, {"name": name, **read_yaml(path)})
    except UserError as error:
        raise UserError(f"{path.name}: {error}") from None
    if study.baseline not in study.variants:
        raise unknown(f"baseline in {path.name}", study.baseline, study.variants)
    return study


def load_all(wanted: Sequence[str], scale: str = "mini") -> list[Study]:
    """The named studies in the given order, each once; `all` is every one that has this scale."""
    every = [study for study in map(load, names()) if study.has(scale)] if "all" in wanted else []
    listed = [study for name in wanted for study in (every if name == "all" else [load(name)])]
    return list({study.name: study for study in listed}.values())


def load_tasks(scale: Form) -> dict[str, StudyTask]:
    """The shared tasks that exist at this scale."""
    return {
        name: parse(StudyTask, each[scale], f"{TASKS} {name}") for name, each in shared(TASKS).items() if scale in each
    }


def find(label: str, scale: str) -> Cell:
    """The cell that a label like gradient-path/KL2-KH2/arithmetic/s0 names."""
    study = load(label.split("/")[0])
    cells = {cell.label: cell for cell in study.cells(scale)}
    if label not in cells:
        raise unknown(f"cell at {scale} scale", label, cells)
    return cells[label]


# What to run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """One training, and the cells (of one or several studies) that want it."""

    key: str
    cells: tuple[Cell, ...]

    @property
    def labels(self) -> list[str]:
        return [cell.label for cell in self.cells]


def plan(cells: Iterable[Cell]) -> list[Training]:
    """Cells of one key together. Seeds outermost: first seeds of all studies in the given order, then the second."""
    grouped: dict[str, list[Cell]] = {}
    rank: dict[str, int] = {}
    seen: dict[str, list[int]] = {}
    for cell in cells:
        seeds = seen.setdefault(cell.study, [])
        if cell.seed not in seeds:
            seeds.append(cell.seed)
        grouped.setdefault(cell.key, []).append(cell)
        rank[cell.key] = min(rank.get(cell.key, len(seeds)), seeds.index(cell.seed))
    return [Training(key, tuple(grouped[key])) for key in sorted(grouped, key=rank.__getitem__)]


def chosen(cells: Iterable[Cell], patterns: Sequence[str]) -> list[Cell]:
    """Those whose label, label without the study, or any part of it (variant, task, seed) fits one of the patterns."""
    cells = list(cells)
    if not patterns:
        return cells
    kept = [cell for cell in cells if any(fnmatch(text, p) for p in patterns for text in _texts(cell.label))]
    if not kept:
        raise UserError(f"--only {' '.join(patterns)} fits no cell: labels are like {cells[0].label}")
    return kept


def _texts(label: str) -> list[str]:
    study, rest = label.split("/", 1)
    return [label, rest, study, *rest.split("/")]
