"""`ponder train`: a preset, or an interrupted run, trained before the reader's eyes."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ponder.base.errors import UserError

if TYPE_CHECKING:
    from ponder.training.loop import Outcome


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder train",
        description="Train a preset. Any value can be overridden: --train.lr 1e-3 --model.layers 2 --data.size 6.",
        epilog="`ponder presets` lists presets and models, `ponder presets NAME` shows every value of one.",
    )
    parser.add_argument("preset", nargs="?", help="a preset, or a YAML file of that form")
    parser.add_argument("--model", help="train another model, a name or a YAML file, with its own recipe")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder (default runs/PRESET[-MODEL]-sSEED)")
    parser.add_argument(
        "--resume", type=Path, metavar="RUN", help="go on with a run folder, its configuration included"
    )
    parser.add_argument(
        "--max-seconds", type=float, metavar="S", help="stop this invocation after so long; resume later"
    )
    parser.add_argument(
        "--max-updates", type=int, metavar="N", help="stop this invocation after so many updates; resume later"
    )
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="where datasets are")
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps; auto: the fastest there is")
    parser.add_argument("--processes", type=int, metavar="N", help="share the batch over N processes (default: chosen)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each process (default: chosen)")
    parser.add_argument("--fresh", action="store_true", help="delete what is in the run folder and start over")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    known, overrides = parser.parse_known_args(args)
    if known.resume is not None:
        if known.fresh:
            raise UserError("--resume goes on with a run and --fresh deletes it: leave out one of them")
        if known.preset or overrides or known.model:
            raise UserError(
                "--resume takes its configuration from the run folder: leave out preset, --model and overrides"
            )
    import torch

    from ponder.base import cores, native, runtime
    from ponder.config.resolve import parse_overrides, preset_names, resolve
    from ponder.training import launch
    from ponder.training.loop import Limits
    from ponder.training.runs import default_folder, read_config, train_in

    if known.resume is not None:
        folder, config = known.resume, read_config(known.resume)
    elif known.preset is None:
        raise UserError(f"which preset? one of {', '.join(preset_names())}")
    else:
        config = resolve(known.preset, known.model, parse_overrides(overrides))
        folder = known.out or default_folder(config, known.model)
    limits = Limits(known.max_seconds, known.max_updates)
    asked = launch.Asked(known.processes, known.threads)
    on_cpu = (runtime.best_device() if known.device == "auto" else known.device) == "cpu"
    if on_cpu and "WORLD_SIZE" not in os.environ:
        layout = launch.choose(config, limits.updates, asked, None if known.fresh else launch.before(folder))
        if not known.quiet:
            slower = f"; without kernels of our own: {why}" if (why := native.missing()) else ""
            print(
                f"on {layout} ({cores.usable()} cores; --processes and --threads choose otherwise{slower})", flush=True
            )
        if layout.processes > 1:
            launch.launch(args, layout)
            return
        torch.set_num_threads(layout.threads)
    here = runtime.start(known.device)
    outcome = train_in(config, folder, known.data_dir, here, limits, known.quiet, known.fresh, ranks=known.processes)
    if here.main and not known.quiet:
        print(closing_words(folder, outcome))
    here.close()


def closing_words(folder: Path, outcome: "Outcome") -> str:
    if not outcome.finished:
        return (
            f"stopped after update {outcome.update} of {outcome.updates} ({outcome.reason}); saved. "
            f"Go on with: ponder train --resume {folder}"
        )
    from ponder.base import files
    from ponder.training.runs import RESULT

    result = files.read_json(folder / RESULT)
    lines = [f"finished: {outcome.updates} updates in {result['seconds']:.0f} s; result in {folder / RESULT}"]
    for split, score in result["last"]["ema"].items():
        chosen = result["chosen_on_val"]["ema"][split]
        lines.append(
            f"  {split}: exact {score['exact']:.1%}, valid {score['valid']:.1%} (last); exact {chosen['exact']:.1%} "
            f"(chosen on val); n {result['n'][split]}"
        )
    return "\n".join(lines)
