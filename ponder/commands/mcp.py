"""`ponder mcp`."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from ponder.inference.solver import Shelf
from ponder.serve.mcp import over_stdio
from ponder.serve.service import Service


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder mcp",
        description="Serve the solvers as MCP tools over stdio; an MCP client starts this (docs/mcp.md).",
    )
    parser.add_argument("--model", action="append", metavar="NAME|RUN", help="repeatable; default: all of the zoo")
    service = Service(Shelf(parser.parse_args(args).model, search=None))
    if sys.stdin.isatty():
        print("waiting for an MCP client on standard input; docs/mcp.md tells how to add one", file=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would wait for the thread that reads a line
    asyncio.run(over_stdio(service))
