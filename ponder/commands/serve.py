"""`ponder serve`."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

import torch

from ponder.base import runtime
from ponder.base.errors import UserError
from ponder.inference.solver import Shelf
from ponder.serve import http, server, service
from ponder.serve.mcp import LOOPBACK


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder serve",
        description="Serve solvers over HTTP: the web page at /, the API at /v1 (see /docs), MCP at /mcp.",
    )
    parser.add_argument("--model", action="append", metavar="NAME|RUN", help="repeatable; default: all of the zoo")
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    parser.add_argument("--slots", type=int, default=service.SLOTS, help="puzzles that a model works on at a time")
    parser.add_argument("--queue", type=int, default=service.QUEUE, help="puzzles more that may wait for each model")
    parser.add_argument("--timeout", type=float, default=service.TIMEOUT, help="seconds for one answer")
    parser.add_argument("--connections", type=int, default=server.CONNECTIONS, help="open at a time")
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    parser.add_argument("--token", help="bearer token that clients must send; better in the variable PONDER_TOKEN")
    parser.add_argument(
        "--allow-host",
        action="append",
        type=str.lower,
        default=[],
        metavar="NAME",
        help="a name that requests may call this server by, beside its address and localhost; repeatable",
    )
    parser.add_argument("--open", action="store_true", help="allow another host than this machine without a token")
    parser.add_argument("--log", action="store_true", help="a line for each request, to standard error")
    known = parser.parse_args(args)
    token = known.token or os.environ.get("PONDER_TOKEN") or None
    if not (server.loopback(known.host) or token or known.open):
        raise UserError(
            f"host {known.host} can be reached from other machines: set PONDER_TOKEN, or give --open to let anyone in"
        )
    if known.threads is not None:
        if known.threads < 1:
            raise UserError(f"threads {known.threads} is too small: give at least 1")
        torch.set_num_threads(known.threads)
    runtime.reuse_memory()
    listening = server.listen(known.host, known.port)
    solvers = service.Service(Shelf(known.model, search=None), known.slots, known.queue, known.timeout)
    address = f"[{known.host}]" if ":" in known.host else known.host
    url = f"http://{address}:{listening.getsockname()[1]}"

    def ready() -> None:
        print(f"serving {', '.join(solvers.shelf.names)} at {url}  (Ctrl-C ends it)", flush=True)

    if known.log:
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
        logging.getLogger("ponder.requests").setLevel(logging.INFO)
    app = http.make_app(solvers, token, host=known.host, hosts=known.allow_host, ready=ready)
    if not server.run(app, listening, known.timeout, known.connections):
        sys.exit(1)
