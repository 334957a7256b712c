"""The plan of the house in docs/architecture.md is the one that `make lint` holds the code to."""

import re
import tomllib
from itertools import pairwise

from tests.support import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_picture_has_the_rooms_in_the_order_of_the_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    picture = re.search(r"```\n(.*?)```", PAGE, flags=re.S)
    assert picture is not None
    drawn = re.findall(r"^ (?: ?\+--> )?([a-z.]+)", picture[1], flags=re.M)
    layers = [re.findall(r"ponder\.([a-z.]+)", layer) for layer in reversed(contract["layers"])]
    rooms = [room for layer in layers for room in layer]  # ponder.__main__ is no room
    assert sorted(drawn) == sorted(set(rooms) - {"cli"})  # which stands beside commands
    places = [[drawn.index(room) for room in layer if room in drawn] for layer in layers]
    for above, below in pairwise(places):
        assert not above or not below or max(above) < min(below)


def test_every_folder_of_the_package_is_a_room() -> None:
    folders = {path.parent.name for path in (ROOT / "ponder").glob("*/__init__.py")}
    assert folders and all(f"**{folder}**" in PAGE for folder in folders)


def test_files_it_names_exist() -> None:
    named = [each for each in re.findall(r"`([\w/.*]+)`", PAGE) if "/" in each]
    assert len(named) > 15
    for path in named:
        if "VERB" not in path:
            assert any([*ROOT.glob(path.rstrip("/")), *(ROOT / "ponder").glob(path.rstrip("/"))]), path
