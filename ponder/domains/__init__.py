"""The registry of domains. Adding one: a file, an entry here, a preset."""

from ponder.domains.arc import Arc1, Arc2
from ponder.domains.arithmetic import Arithmetic
from ponder.domains.base import Domain
from ponder.domains.sudoku import Sudoku

DOMAINS: dict[str, type[Domain]] = {
    "arc1": Arc1,
    "arc2": Arc2,
    "arithmetic": Arithmetic,
    "sudoku": Sudoku,
}
