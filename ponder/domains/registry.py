"""The registry of domains. Adding one: a file, an entry here, a preset."""

from ponder.domains.arc.domain import Arc1, Arc2
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.contract import Domain
from ponder.domains.joint import Joint
from ponder.domains.life.domain import Life
from ponder.domains.maze.domain import Maze
from ponder.domains.sudoku.domain import Sudoku

DOMAINS: dict[str, type[Domain]] = {
    "arc1": Arc1,
    "arc2": Arc2,
    "arithmetic": Arithmetic,
    "joint": Joint,
    "life": Life,
    "maze": Maze,
    "sudoku": Sudoku,
}
