"""`ponder eval`: a checkpoint on its splits, as a table, a figure, and a folder from which everything can be audited.

The folder holds `eval.json`, `eval.png`, `records/WEIGHTS-SPLIT.npz` with one record per example, and for ARC the
submission. It is written aside and gets its name when it is whole. The table and the figure show `eval.json` alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from ponder import __version__
from ponder.base import files, runtime
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.schema import ModelConfig
from ponder.domains.contract import Domain, Progress, silent
from ponder.evaluation.arc import SplitRun, measure
from ponder.evaluation.records import Settings, mean_of, save_records, summarise
from ponder.evaluation.schema import VERSION, CostBySteps, DataUsed, EvalResult, Origin, RecordsFile, SplitResult
from ponder.evaluation.show import draw
from ponder.evaluation.subject import (
    EvalRequest,
    arrange_table,
    choose_data,
    default_folder,
    open_data,
    settings_for,
    weight_sets,
)
from ponder.inference.weights import open_weights
from ponder.model import cost

RESULT, FIGURE, RECORDS = "eval.json", "eval.png", "records"
OOD = "ood_mean"


def run(request: EvalRequest, here: Runtime, progress: Progress = silent) -> Path:
    """Evaluate, and write the folder; returns it. Ranks share the work, the first one writes."""
    # Everything that can be wrong is found here, before the model runs
    opened = open_weights(request.checkpoint, "online" if request.weights == "online" else "ema", here.device)
    model = opened.model.config
    data_config, defaults = choose_data(opened, request.domain)
    dataset = open_data(data_config, request.data_dir, here, progress)
    domain = dataset.domain
    splits = request.splits or tuple(split for split in dataset.counts if split != "train")
    for split in splits:
        dataset.arrays(split)
    how = settings_for(model, defaults, here.device, request.steps, request.batch, request.limit)
    out = request.out or default_folder(opened)
    with writing(out, here.main) as aside:
        sha256: dict[str, str] = {}
        scores: dict[str, dict[str, SplitResult]] = {}
        for weights, each in weight_sets(request, opened, here.device):
            sha256[weights], scores[weights] = each.sha256, {}
            arrange_table(each, dataset, splits)
            for split in splits:
                bar = _named(progress, f"{split}, {weights} weights")
                measured = measure(each.model, domain, dataset.source(split), how, here, bar)
                if here.main:
                    scores[weights][split] = _written(measured, domain, model, split, weights, aside)
        if here.main:
            for each_split in scores.values():
                each_split.update(ood_means(each_split, domain))
            config = opened.config
            result = EvalResult(
                version=VERSION,
                checkpoint=Origin(name=opened.name, path=str(opened.path.resolve()), update=opened.update),
                weights=sha256,
                config=None if config is None else config.flat(),
                model=model.model_dump(mode="json"),
                seed=None if config is None else config.seed,
                data=DataUsed(path=str(dataset.path), hash=dataset.hash, config=dataset.config.flat()),
                protocol=protocol_words(how, model, domain, list(scores), here.device),
                steps=how.steps,
                budget=model.max_steps,
                batch=how.batch,
                limit=how.limit,
                precision=how.precision,
                device=str(here.device),
                ranks=here.world,
                cost=cost_by_step(model, domain, how.steps),
                scores=scores,
                environment={"ponder": __version__, **runtime.environment()},
                command=request.command,
            )
            files.write_json(aside / RESULT, result.as_data())
            draw(result, aside / FIGURE)
    here.barrier()
    return out


def _named(progress: Progress, name: str) -> Progress:
    return lambda what, done, total: progress(f"{what} {name}", done, total)


def _written(
    measured: SplitRun, domain: Domain, model: ModelConfig, split: str, weights: str, aside: Path
) -> SplitResult:
    """The score of one split with one set of weights; its records, and for ARC its submission, in the folder."""
    file, arc = aside / RECORDS / f"{weights}-{split}.npz", None
    save_records(measured.records, file)
    if measured.arc is not None:
        name = "submission.json" if split == "test" and weights != "online" else f"submission-{weights}-{split}.json"
        arc = measured.arc.score.model_copy(update={"submission": name})
        files.write(aside / name, json.dumps(measured.arc.submission))
    return SplitResult(
        **dict(summarise(measured.records, model.max_steps, model.head)),
        role=domain.splits[split].role,
        of=measured.of,
        records=RecordsFile(file=f"{RECORDS}/{file.name}", sha256=files.sha256(file)),
        arc=arc,
    )


def ood_means(scores: Mapping[str, SplitResult], domain: Domain) -> dict[str, SplitResult]:
    """The unweighted mean over all out-of-distribution splits, where all were evaluated; in joint, of each domain."""
    groups: dict[str, list[str]] = {}
    for split, info in domain.splits.items():
        if info.role == "ood":
            part = split.rpartition(".")[0]
            groups.setdefault(f"{part}.{OOD}" if part else OOD, []).append(split)
    return {
        name: SplitResult(**dict(mean_of([scores[split] for split in splits])), role="ood", splits=tuple(splits))
        for name, splits in groups.items()
        if all(split in scores for split in splits)
    }


def cost_by_step(model: ModelConfig, domain: Domain, steps: int) -> CostBySteps:
    counts = range(1, steps + 1)
    work, applications = cost.flops(model, len(domain.vocab), domain.seq_len, domain.geometry), cost.applications(model)
    return CostBySteps(
        parameters=work.parameters,
        layer_applications=[applications * count for count in counts],
        dense_passes=[applications / cost.DENSE_LAYERS * count for count in counts],
        flops=[work.inference * count for count in counts],
    )


def protocol_words(
    how: Settings, model: ModelConfig, domain: Domain, weights: Sequence[str], device: torch.device
) -> str:
    run_to = f"halting off, every example runs {how.steps} ACT steps (training budget {model.max_steps})"
    rules = "accepted by the domain's rules" if domain.checkable else "the same, for want of rules"
    trust = "halting logit" if model.head else "mean token log-probability"
    return (
        f"{' and '.join(weights)} weights; {run_to if model.states else 'one pass'}; "
        f"{'all examples' if how.limit is None else f'at most {how.limit} examples of each split'}; "
        f"exact: equals the stored label, valid: {rules}, token: share of right tokens; "
        f"best_full: each example at its most confident step by {trust}; 95% Wilson intervals; "
        f"{how.precision} on {device.type}"
    )


@contextmanager
def writing(folder: Path, main: bool) -> Iterator[Path]:
    """A folder to fill, which takes the place of an earlier evaluation when it is whole."""
    if not main:
        yield folder
        return
    if folder.exists() and not (folder / RESULT).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an evaluation: choose another --out")
    with ExitStack() as stack:
        try:
            aside = stack.enter_context(files.folder_aside(folder))
            (aside / RECORDS).mkdir()
        except OSError as error:
            raise UserError(f"cannot write to {folder.parent} ({error.strerror}): choose another --out") from None
        yield aside
