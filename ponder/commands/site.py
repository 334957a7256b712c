"""`ponder site`."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder site",
        description="Write the web page as static files for any host: the models run in the visitor's browser.",
        epilog="Takes a quarter of a minute for each model. docs/site.md says where the files may lie.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to fill: a new one, or an earlier site")
    parser.add_argument("--model", action="append", metavar="NAME|RUN", help="repeatable; default: all of the zoo")
    parser.add_argument(
        "--ort",
        type=Path,
        metavar="DIR",
        help="folder of the npm package onnxruntime-web (default: npm fetches it)",
    )
    known = parser.parse_args(args)
    from ponder.serve.site import write_site

    names = write_site(known.out, known.model, known.ort, lambda line: print(line, flush=True))
    size = sum(path.stat().st_size for path in known.out.rglob("*") if path.is_file()) / 1e6
    print(f"wrote {known.out} ({size:.0f} MB): {len(names)} models; put it on any static host")
    print(f"to look at it here: python -m http.server --bind 127.0.0.1 --directory {known.out} 8000")
