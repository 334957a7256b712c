"""`ponder VERB`: a dict from verb to function. Imports stay inside the verbs, so that `--help` answers at once."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ponder import __version__
from ponder.base.errors import UserError, handed_over, unknown


def _parser(verb: str, about: str, **kwargs: Any) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"ponder {verb}", description=about, **kwargs)


def domains(args: Sequence[str]) -> None:
    """list the domains, their splits and their presets"""
    _parser("domains", "List the domains.").parse_args(args)
    from ponder.commands.show import print_domains

    print_domains()


def presets(args: Sequence[str]) -> None:
    """list the presets and the models; with a name, show what it resolves to"""
    parser = _parser("presets", "List presets and models, or show one resolved.")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--model", help="put another model's recipe on top")
    known, rest = parser.parse_known_args(args)
    from ponder.commands.show import print_preset, print_presets

    if known.name is None:
        print_presets()
    else:
        print_preset(known.name, known.model, rest)


def data(args: Sequence[str]) -> None:
    """build, show and verify datasets"""
    parser = _parser("data", "Build, look at and verify datasets.")
    parser.add_argument("action", choices=("build", "show", "verify"))
    parser.add_argument("what", metavar="PRESET_OR_PATH")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--workers", type=int, default=None, help="processes; changes nothing but the time")
    parser.add_argument("--split", default="train")
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--subsample", type=int, help="keep this many training examples (seeded)")
    parser.add_argument("--svg", type=Path, help="also write the picture")
    known, rest = parser.parse_known_args(args)
    from ponder.commands import show
    from ponder.data import open_named

    if known.action == "verify":
        show.verify_dataset(Path(known.what))
        return
    if known.subsample is not None:
        rest = [*rest, "--data.subsample", str(known.subsample)]
    dataset = open_named(known.what, rest, known.data_dir, known.workers)
    if known.action == "build":
        show.print_dataset(dataset)
    else:
        show.show_example(dataset, known.split, known.index, known.svg)


def train(args: Sequence[str]) -> None:
    """train a preset; resumes where the run folder left off"""
    parser = _parser(
        "train",
        "Train a preset. Any value can be overridden: --train.lr 1e-3 --model.layers 2 --data.size 6.",
        epilog="`ponder presets` lists presets and models, `ponder presets NAME` shows every value of one.",
    )
    parser.add_argument("preset", nargs="?")
    parser.add_argument("--model", help="train another model on this domain, with its own recipe")
    parser.add_argument("--out", type=Path, help="run folder (default runs/PRESET[-MODEL]-sSEED)")
    parser.add_argument(
        "--resume", type=Path, metavar="RUN", help="go on with a run folder, its configuration included"
    )
    parser.add_argument("--max-seconds", type=float, help="stop this invocation after so many seconds; resume later")
    parser.add_argument("--max-updates", type=int, help="stop this invocation after so many updates; resume later")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, metavar="N", help="share the batch over N processes (default: chosen)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each process (default: chosen)")
    parser.add_argument("--fresh", action="store_true", help="delete what is in the run folder and start over")
    parser.add_argument("--quiet", action="store_true")
    known, rest = parser.parse_known_args(args)
    from ponder.training.runs import train_main

    train_main(known, rest, args)


def eval_(args: Sequence[str]) -> None:
    """score a checkpoint at every ACT step; a table, a figure and records"""
    from ponder.commands.eval_ import main

    main(args)


def diff(args: Sequence[str]) -> None:
    """two evaluated runs: settings that differ, and the paired difference in score"""
    from ponder.commands.diff import main

    main(args)


def cost(args: Sequence[str]) -> None:
    """parameters, layer applications, FLOPs and memory of a model"""
    from ponder.model.cost import main

    main(list(args))


def policies(args: Sequence[str]) -> None:
    """accuracy against compute for every halting policy"""
    from ponder.commands.policies import main

    main(args)


def search(args: Sequence[str]) -> None:
    """noisy restarts in parallel until the checker accepts"""
    from ponder.commands.search import main

    main(args)


def eval_llm(args: Sequence[str]) -> None:
    """put a domain's examples to a language model"""
    from ponder.llm.run import main

    main(args)


def solve(args: Sequence[str]) -> None:
    """solve puzzles with a trained model: text, JSON, pictures"""
    from ponder.commands.solve import main

    main(args)


def zoo(args: Sequence[str]) -> None:
    """list the trained models; with a name, show its card"""
    from ponder.zoo.cards import main

    main(args)


def study(args: Sequence[str]) -> None:
    """the paper's experiments as one-diff variants: list, show, run, status, report"""
    from ponder.commands.study import main

    main(args)


def import_(args: Sequence[str]) -> None:
    """convert a published HRM, TRM or URM checkpoint"""
    from ponder.commands.import_ import import_main

    import_main(list(args))


def export(args: Sequence[str]) -> None:
    """write one ACT step of a model as an ONNX graph"""
    from ponder.commands.export import main

    main(args)


def mcp(args: Sequence[str]) -> None:
    """the solvers as tools for language models, over stdio"""
    from ponder.commands.mcp import main

    main(args)


def serve(args: Sequence[str]) -> None:
    """the solvers over HTTP, with a web page and MCP tools"""
    from ponder.commands.serve import main

    main(args)


def quickstart(args: Sequence[str]) -> None:
    """train 4x4 Sudoku in a few minutes and watch it solve one"""
    parser = _parser("quickstart", "Train the 4x4 Sudoku model and watch it think.")
    parser.add_argument("--seconds", type=float, default=150, help="training time at most")
    from ponder.commands.quickstart import main

    main(parser.parse_args(args).seconds)


VERBS: dict[str, Callable[[Sequence[str]], None]] = {
    "quickstart": quickstart,
    "solve": solve,
    "zoo": zoo,
    "domains": domains,
    "presets": presets,
    "data": data,
    "train": train,
    "eval": eval_,
    "diff": diff,
    "cost": cost,
    "policies": policies,
    "search": search,
    "eval-llm": eval_llm,
    "study": study,
    "import": import_,
    "serve": serve,
    "mcp": mcp,
    "export": export,
}


def usage() -> str:
    lines = [f"ponder {__version__}: recursive reasoning models, from training to solvers", "", "ponder VERB ...", ""]
    lines += [f"  {name:<12} {verb.__doc__}" for name, verb in VERBS.items()]
    return "\n".join([*lines, "", "`ponder VERB --help` tells more."])


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            print(usage(), flush=True)
        elif words[0] == "--version":
            print(__version__)
        elif words[0] not in VERBS:
            raise unknown("verb", words[0], VERBS)
        else:
            VERBS[words[0]](words[1:])
    except UserError as error:
        if not handed_over(error):
            print(f"ponder: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("ponder: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if not handed_over(error):
            raise
        return 1
    return 0
