"""The registry of domains. Adding one: a file, an entry here, a preset."""

from ponder.domains.base import Domain
from ponder.domains.sudoku import Sudoku

DOMAINS: dict[str, type[Domain]] = {
    "sudoku": Sudoku,
}
