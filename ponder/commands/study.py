"""`ponder study`: list, show, run, status, report, cost, task; `cell`, which a worker runs, and `migrate`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ponder.base import cores
from ponder.base.errors import UserError, at_least
from ponder.config.resolve import parse_overrides
from ponder.studies.spec import SCALES, Study, Training, chosen, is_smoke, load, load_all, names, plan
from ponder.studies.store import Store

RESULTS = Path("results/cells")


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder study",
        description="Experiments as one-diff variants of a baseline: run what is missing, report what is stored.",
    )
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="list|show|run|status|report|cost|task|cell|migrate"
    )
    verbs.add_parser("list", help="the studies")
    show = verbs.add_parser("show", help="a study's variants and cells")
    show.add_argument("name")
    run = verbs.add_parser("run", help="run the cells that are not done; `all` is every study")
    run.add_argument("names", nargs="+", metavar="NAME")
    run.add_argument("--workers", type=int, help="cells at a time (default: as many as the cores carry)")
    run.add_argument("--max-seconds", type=float, help="stop after so long, saved; the next run goes on")
    run.add_argument(
        "--only", nargs="+", default=[], metavar="P", help="variants, tasks or seeds: 'KL2-*', s0, 'base/*/s1'"
    )
    run.add_argument("--dry-run", action="store_true", help="say what would be run")
    run.add_argument("--slurm", metavar="K=V,...", help="submit instead: partition=gpu,time=600,gpus=1,array=8,pack=4")
    run.add_argument("--print", action="store_true", help="with --slurm: show the scripts, submit nothing")
    status = verbs.add_parser("status", help="done, running, failed, left")
    status.add_argument("names", nargs="*", metavar="NAME")
    report = verbs.add_parser("report", help="tables and figures from stored results; `all` also writes RESULTS.md")
    report.add_argument("names", nargs="+", metavar="NAME")
    report.add_argument("--write", type=Path, metavar="FILE", help="put the headline between the markers of this page")
    cost = verbs.add_parser("cost", help="GPU-hours of a study at paper scale")
    cost.add_argument("names", nargs="+", metavar="NAME")
    cost.add_argument("--gpu", default="H100", help="which GPU (default H100)")
    cost.add_argument("--utilisation", type=float, default=0.3, help="share of its peak (default 0.3)")
    cost.add_argument("--write", type=Path, metavar="FILE", help="put the table between the markers of this page")
    task = verbs.add_parser(
        "task",
        help="whether a task can tell recipes apart: trains dense, hrm and ponder on it, or reads their trainings",
        description="Settings such as --data.size 6 --train.updates 500 change it; without a task: all that was tried.",
        allow_abbrev=False,
    )
    task.add_argument("task", nargs="?", metavar="TASK")
    task.add_argument("--name", help="what to call the candidate (default: the task and its key)")
    task.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N")
    task.add_argument("--read", action="store_true", help="train nothing: read what is stored")
    cell = verbs.add_parser("cell", help="run one cell in this process, or in torchrun's ranks")
    cell.add_argument("labels", nargs="+", metavar="STUDY/VARIANT/TASK/sSEED")
    cell.add_argument("--key", help=argparse.SUPPRESS)
    cell.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    cell.add_argument("--quiet", action="store_true")
    cell.add_argument("--max-seconds", type=float)
    migrate = verbs.add_parser("migrate", help="give the results of an older ponder the names they have now")
    for each in (show, run, status, report, cell, migrate):
        each.add_argument("--scale", choices=SCALES, default="mini")
        each.add_argument(
            "--smoke", action="store_true", help="shrunk to seconds: with --scale paper, the paper's form"
        )
    for each in (show, run, status, report, task, cell, migrate):
        each.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
        each.add_argument("--runs", type=Path, default=Path("runs/cells"), metavar="DIR")
    for each in (run, task, cell):
        each.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR")
        each.add_argument("--device", default="auto")
    known, settings = parser.parse_known_args(args)
    if settings and known.verb != "task":
        parser.error(f"unrecognized arguments: {' '.join(settings)}")
    known.settings = settings
    if getattr(known, "smoke", False) and not is_smoke(known.scale):
        known.scale = {"mini": "smoke", "paper": "paper-smoke"}[known.scale]
    ACTIONS[known.verb](known)


def _place(args: argparse.Namespace) -> Store:
    if (cells := args.results / "cells").is_dir():
        raise UserError(f"{args.results} lies around the folder of the stored trainings: give --results {cells}")
    return Store(args.results, args.runs)


def _store(args: argparse.Namespace) -> Store:
    store = _place(args)
    if older := store.older():
        more = f" and {len(older) - 1} more are" if len(older) > 1 else " is"
        raise UserError(f"{older[0]}{more} of an older ponder, or no stored training: run `ponder study migrate` once")
    return store


def _migrate(args: argparse.Namespace) -> None:
    from ponder.studies.migrate import migrate

    for line in migrate(_place(args)):
        print(line)


def _list(args: argparse.Namespace) -> None:
    from ponder.studies.board import print_studies

    print_studies([load(name) for name in names()], Console(highlight=False))


def _show(args: argparse.Namespace) -> None:
    from ponder.studies.board import print_study

    print_study(load(args.name), args.scale, _store(args), Console(highlight=False))


def _status(args: argparse.Namespace) -> None:
    from ponder.studies.board import print_status

    print_status(load_all(args.names or ["all"], args.scale), args.scale, _store(args), Console(highlight=False))


def _report(args: argparse.Namespace) -> None:
    from ponder.reports.pages import main_report

    if args.results != RESULTS and not args.results.is_dir():
        raise UserError(f"there is no folder {args.results}: --results names the one that holds the stored trainings")
    for path in main_report(args.names, args.scale, args.results.parent, _store(args), args.write, print):
        print(path)


def _cost(args: argparse.Namespace) -> None:
    from ponder.studies.cost import print_costs

    print_costs(load_all(args.names, "paper"), args.gpu, args.utilisation, args.write)


def _task(args: argparse.Namespace) -> None:
    from ponder.data import Dataset, build, default_workers
    from ponder.studies import candidate, fixed
    from ponder.studies.run import Assignment, attempt_cell

    store = _store(args)
    root = store.root.parent / "tasks"
    if args.task is None:
        print(candidate.table(candidate.read_all(root)))
        return
    changes = parse_overrides(args.settings)
    cells = candidate.study_of(args.task, changes, args.seeds).cells("mini")
    for cell in cells:
        if not args.read and store.read(cell) is None:
            print(f"training {cell.variant} on {cell.task}, seed {cell.seed}", flush=True)
            code = attempt_cell(cell, Assignment((cell.label,), "mini", store, args.data_dir, args.device))
            if code:
                why = store.failed(cell) or "another process has it, or it was stopped: the same command goes on"
                raise UserError(f"{cell.variant} on {cell.task} is not trained: {why}")
    stored = {cell.key: found for cell in cells if (found := store.read(cell)) is not None}
    if missing := [cell.variant for cell in cells if cell.key not in stored]:
        raise UserError(f"{', '.join(missing)} on {args.task} are not trained: leave out --read")
    constants = fixed.read(store.fixed, stored[cells[0].key].data_hash)
    if constants is None and not args.read:
        constants = fixed.keep(Dataset.open(build(cells[0].config.data, args.data_dir, default_workers())), store.fixed)
    key = next(cell.key for cell in cells if cell.variant == "ponder")
    tried = candidate.judge(args.name or f"{args.task}-{key}", changes, cells, stored, constants)
    print(f"{candidate.table([tried])}\n")
    for path in candidate.keep(tried, root):
        print(path)


def _cell(args: argparse.Namespace) -> None:
    from ponder.base.runtime import end_with
    from ponder.studies.run import Assignment, attempt

    if args.parent is not None:
        end_with(args.parent)
    work = Assignment(
        labels=tuple(args.labels),
        scale=args.scale,
        store=_store(args),
        data_dir=args.data_dir,
        device=args.device,
        key=args.key,
        max_seconds=args.max_seconds,
        quiet=args.quiet,
    )
    sys.exit(attempt(work))


def _run(args: argparse.Namespace) -> None:
    at_least(1, {"--workers": args.workers})
    studies = load_all(args.names, args.scale)
    trainings = plan(chosen([cell for study in studies for cell in study.cells(args.scale)], args.only))
    if args.dry_run:
        _say_plan(trainings, _store(args))
    elif args.slurm is not None:
        from ponder.studies.slurm import submit

        if args.max_seconds is not None or args.device != "auto" or args.workers is not None:
            raise UserError("--slurm settles time, device and workers: leave out --max-seconds, --device and --workers")
        submit(trainings, args.slurm, args.scale, _store(args), args.data_dir, args.print)
    elif args.print:
        raise UserError("--print shows the script of a Slurm job: give --slurm too")
    else:
        _run_here(trainings, studies, args)


def _say_plan(trainings: Sequence[Training], store: Store) -> None:
    for training in trainings:
        states = {store.state(cell) for cell in training.cells}
        state = states.pop() if len(states) == 1 else "left"
        print(f"{state:<8}{training.key}  {'  '.join(training.labels)}")


def _run_here(trainings: Sequence[Training], studies: Sequence[Study], args: argparse.Namespace) -> None:
    from torch.cuda import device_count

    from ponder.base.console import Bar
    from ponder.studies.board import view_for
    from ponder.studies.run import Runner, build_data
    from ponder.training.loop import Limits

    Limits(args.max_seconds)  # refused now if it is none
    threads = max(study.scale(args.scale).threads for study in studies)
    gpus = device_count() if args.device in ("auto", "cuda") else 0
    runner = Runner(
        store=_store(args),
        data_dir=args.data_dir,
        scale=args.scale,
        workers=args.workers or gpus or max(1, cores.usable() // threads),
        device=args.device,
        gpus=gpus,
        max_seconds=args.max_seconds,
    )
    stored = all(runner.done(training) for training in trainings)
    with Bar() as bar:
        hopeless = build_data([training for training in trainings if not runner.done(training)], args.data_dir, bar)
    tally = runner.run(trainings, view_for(), hopeless)
    if stored:
        print(f"all of it was in {args.results} already; to run it anew: --results elsewhere")
    if tally.stopped:
        print(f"stopped with {len(tally.stopped)} trainings to go, saved: the same command goes on")
    if tally.elsewhere:
        print(f"{len(tally.elsewhere)} trainings are being run by another process")
    if tally.failed:
        label, error = next(iter(tally.failed.items()))
        raise UserError(
            f"{len(tally.failed)} trainings failed, the first {label}: {error}. `ponder study status` shows all; "
            f"running again tries them again"
        )


ACTIONS = {
    "list": _list,
    "show": _show,
    "run": _run,
    "status": _status,
    "report": _report,
    "cost": _cost,
    "task": _task,
    "cell": _cell,
    "migrate": _migrate,
}
