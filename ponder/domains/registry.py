"""Which domains there are: those that come with ponder, and those that others bring (docs/domains.md).

A domain of one's own is a class in an installed package, named by an entry point of the group `ponder.domains`; or in a
file, named by `--domain-file` or the variable PONDER_DOMAINS, which the processes that ponder starts inherit. Such code
is loaded when its name, or the list of all names, is asked for, so that a broken one is in nobody's way.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from ponder.base.errors import UserError, unknown
from ponder.domains.arc.domain import Arc1, Arc2
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.contract import Domain
from ponder.domains.joint import Joint
from ponder.domains.life.domain import Life
from ponder.domains.maze.domain import Maze
from ponder.domains.sudoku.domain import Sudoku

BUILT_IN: Mapping[str, type[Domain]] = {
    domain.name: domain for domain in (Arc1, Arc2, Arithmetic, Joint, Life, Maze, Sudoku)
}
GROUP = "ponder.domains"
FILES = "PONDER_DOMAINS"
"""The environment variable: files of domains, separated as in PATH."""
HOW = "a domain of your own is known when its package is installed, or with --domain-file FILE (docs/domains.md)"


def find(name: str) -> type[Domain]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    for path in _files():
        if name in (found := _in_file(path)):
            return found[name]
    for point in entry_points(group=GROUP, name=name):
        return _in_package(point)[name]
    names = [*BUILT_IN, *(point.name for point in entry_points(group=GROUP))]
    raise UserError(f"{unknown('domain', name, names)}; {HOW}")


def known(name: str) -> bool:
    try:
        find(name)
    except UserError:
        return False
    return True


def every() -> dict[str, type[Domain]]:
    """All domains by name. One that cannot be used is left out with a line that says why."""
    return {**BUILT_IN, **brought()}


@cache
def brought() -> Mapping[str, type[Domain]]:
    """The domains that are not ponder's own."""
    out: dict[str, type[Domain]] = {}
    loads: list[Callable[[], Mapping[str, type[Domain]]]] = [partial(_in_file, path) for path in _files()]
    loads += [partial(_in_package, point) for point in entry_points(group=GROUP)]
    for load in loads:
        try:
            out = {**load(), **out}
        except UserError as error:
            print(f"ponder: left out: {error}", file=sys.stderr)
    return out


def presets() -> Iterator[Path]:
    """The presets of the domains that others bring: the files in `presets/` beside a domain's own."""
    for folder in dict.fromkeys(Path(inspect.getfile(domain)).parent / "presets" for domain in brought().values()):
        yield from sorted(folder.glob("*.yaml"))


def use_file(path: str) -> None:
    """Have the domains in a file known to this process and to those that it starts."""
    if not Path(path).is_file():
        raise UserError(f"--domain-file {path} is no file: give the Python file that holds the domain's class")
    os.environ[FILES] = os.pathsep.join(dict.fromkeys([*map(str, _files()), str(Path(path).resolve())]))
    brought.cache_clear()


def _files() -> list[Path]:
    return [Path(path) for path in os.environ.get(FILES, "").split(os.pathsep) if path]


@cache
def _in_file(path: Path) -> dict[str, type[Domain]]:
    """The domains of a file, which becomes a module of its own name, so that worker processes can import it too."""
    package = path.stem == "__init__"
    name, folder = (path.parent.name, path.parent.parent) if package else (path.stem, path.parent)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        module = import_module(name)
    except Exception as error:
        raise UserError(f"the domains in {path} cannot be loaded: {_reason(error)}") from error
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise UserError(f"{path} has the name of another module, {module.__file__}: give the file another name")
    classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
    found = {d.name: _usable(d, str(path)) for d in classes if issubclass(d, Domain) and "name" in vars(d)}
    if not found:
        raise UserError(f"{path} holds no domain: write a class with a name that extends ponder.domains.GridDomain")
    return found


def _in_package(point: EntryPoint) -> dict[str, type[Domain]]:
    package = point.dist.name if point.dist else point.module
    where = f"the domain {point.name!r} of the package {package}"
    try:
        domain = point.load()
    except Exception as error:
        raise UserError(f"{where} cannot be loaded: {_reason(error)}") from error
    if not (isinstance(domain, type) and issubclass(domain, Domain)) or domain.name != point.name:
        raise UserError(f"{where}: {point.value} should be a subclass of ponder.domains.Domain with that name")
    return {point.name: _usable(domain, where)}


def _usable(domain: type[Domain], where: str) -> type[Domain]:
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", domain.name):
        raise UserError(f"{where}: {domain.name!r} is no name for a domain: use small letters, digits, - and _")
    if domain.name in BUILT_IN:
        raise UserError(f"{where}: {domain.name!r} is a domain of ponder's own: choose another name")
    lacks = [name for name in ("title", "rules") if not hasattr(domain, name)] + sorted(domain.__abstractmethods__)
    if domain.generate is Domain.generate and domain.build is Domain.build:
        lacks.append("generate")
    if lacks:
        raise UserError(f"{where}: {domain.__name__} lacks {', '.join(lacks)} (docs/domains.md)")
    return domain


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
