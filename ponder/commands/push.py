"""`ponder push`: a model to the Hugging Face Hub."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder push",
        description="Put a model on the Hugging Face Hub: weights, configuration, card and a README made of it.",
        epilog="Who you are: `hf auth login`, or the variable HF_TOKEN.",
    )
    parser.add_argument("model", help="a zoo name, or a run folder, which is evaluated for its card")
    parser.add_argument("repo", metavar="OWNER/NAME", help="made where it is not there yet")
    parser.add_argument("--private", action="store_true", help="a new repository that only its owner sees")
    parser.add_argument("--limits", default="", help="of a run: what a user should know about where it fails")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="where datasets are")
    known = parser.parse_args(args)
    from ponder.base.console import Bar
    from ponder.zoo.travel import push

    with Bar() as bar:
        commit = push(known.model, known.repo, known.private, known.limits, known.data_dir, bar)
    print(f"pushed: ponder solve hf://{known.repo}@{commit} --random")
