"""The registry of domains. Adding one: a file, an entry here, a preset."""

from ponder.domains.arc import Arc1, Arc2
from ponder.domains.arithmetic import Arithmetic
from ponder.domains.base import Domain
from ponder.domains.joint import Joint
from ponder.domains.life import Life
from ponder.domains.maze import Maze
from ponder.domains.sudoku import Sudoku

DOMAINS: dict[str, type[Domain]] = {
    "arc1": Arc1,
    "arc2": Arc2,
    "arithmetic": Arithmetic,
    "joint": Joint,
    "life": Life,
    "maze": Maze,
    "sudoku": Sudoku,
}
