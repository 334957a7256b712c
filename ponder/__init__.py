"""ponder: recursive reasoning models, from training to solvers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ponder.inference.answers import Answer
    from ponder.inference.solver import Solver

from ponder.base.cores import wait_quietly

__version__ = "0.1.0"
__all__ = ["Answer", "Solver", "__version__"]

wait_quietly()


def __getattr__(name: str) -> Any:
    """`from ponder import Solver`, without every command paying for torch."""
    if name in ("Answer", "Solver"):
        from ponder.inference import solver as infer

        return getattr(infer, name)
    raise AttributeError(f"module 'ponder' has no attribute {name!r}")
