"""ponder: recursive reasoning models, from training to solvers. docs/api.md shows what can be imported from here."""

from typing import TYPE_CHECKING, Any

from ponder.base.errors import UserError

if TYPE_CHECKING:
    from ponder.api import Limits, build, compare, evaluate, resolve, train
    from ponder.inference.answers import Answer
    from ponder.inference.solver import Solver

from ponder.base.cores import wait_quietly

__version__ = "0.2.0"
__all__ = [
    "Answer",
    "Limits",
    "Solver",
    "UserError",
    "__version__",
    "build",
    "compare",
    "evaluate",
    "resolve",
    "train",
]

wait_quietly()


def __getattr__(name: str) -> Any:
    """Every other name is loaded when it is used, so that no command pays for torch before it needs it."""
    if name not in __all__:
        raise AttributeError(f"module 'ponder' has no attribute {name!r}")
    if name in ("Answer", "Solver"):
        from ponder.inference import solver

        return getattr(solver, name)
    from ponder import api

    return getattr(api, name)
