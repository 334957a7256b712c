"""Files: whole or not there, on systems that lock, sync and encode otherwise."""

import ast
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ponder import checkpoint
from ponder.base import files
from tests.support import ROOT

UNIX_ONLY = ("fcntl", "grp", "posix", "pwd", "readline", "resource", "syslog", "termios", "tty")


def found(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def failing(monkeypatch: pytest.MonkeyPatch, when: Callable[[Path], bool], code: int) -> list[Path]:
    """Make the sync of some paths fail as a system that refuses it would. Returns what was refused."""
    refused: list[Path] = []
    names: dict[int, Path] = {}
    opened, synced = os.open, os.fsync

    def note(path: str | Path, *rest: int, **more: Any) -> int:
        names[handle := opened(path, *rest, **more)] = Path(path)
        return handle

    def fsync(handle: int) -> None:
        if handle in names and when(names[handle]):
            refused.append(names[handle])
            raise OSError(code, os.strerror(code))
        synced(handle)

    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr(os, "fsync", fsync)
    return refused


# One file -------------------------------------------------------------------------------------------------------------


def test_a_file_holds_the_same_bytes_everywhere(tmp_path: Path) -> None:
    files.write(tmp_path / "new" / "a.txt", "π\nz\n")
    files.write_json(tmp_path / "new" / "a.json", {"π": [1]})
    assert found(tmp_path / "new") == {"a.json": b'{\n "\\u03c0": [\n  1\n ]\n}', "a.txt": b"\xcf\x80\nz\n"}
    assert files.read_json(tmp_path / "new" / "a.json") == {"π": [1]}
    (tmp_path / "b.json").write_bytes('"π"'.encode())
    assert files.read_json(tmp_path / "b.json") == "π"


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    files.write(path, "before")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        files.write(path, "after")
    assert found(tmp_path) == {"a.txt": b"before"}


# Folders --------------------------------------------------------------------------------------------------------------


def test_a_folder_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "t"
    for word in ("one", "two"):
        with files.folder_aside(target) as part:
            (part / "in").mkdir()
            files.write(part / "in" / word, word)
        assert found(tmp_path) == {str(Path("deep", "t", "in", word)): word.encode()}
        assert [p.name for p in target.parent.iterdir()] == ["t"]
    with pytest.raises(ZeroDivisionError), files.folder_aside(target) as part:
        files.write(part / "three", "")
        _ = 1 / 0
    assert [p.name for p in target.parent.iterdir()] == ["t"] and found(target) == {str(Path("in", "two")): b"two"}


def test_what_another_process_finished_first_stays(tmp_path: Path) -> None:
    target = tmp_path / "t"
    with files.folder_aside(target, whole="done") as part:
        files.write(part / "done", "ours")
        files.write(target / "done", "theirs")
    assert found(tmp_path) == {str(Path("t", "done")): b"theirs"}
    (target / "done").rename(target / "leftover")  # never finished: it goes
    with files.folder_aside(target, whole="done") as part:
        files.write(part / "done", "ours")
    assert found(tmp_path) == {str(Path("t", "done")): b"ours"}


def test_a_folder_is_deleted_when_its_new_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may keep what was done in one folder and lose what was done before it in another."""
    done: list[tuple[str, str]] = []
    monkeypatch.setattr(files, "to_disk", lambda path: done.append(("disk", path.name)))
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: done.append(("gone", path.name)))
    for name in ("new", "target"):
        (tmp_path / name).mkdir()
    files.put_folder(tmp_path / "new", tmp_path / "target")
    assert done[-2:] == [("disk", tmp_path.name), ("gone", ".target.old")]
    (tmp_path / ".target.old").rmdir()
    files.remove_folder(tmp_path / "target")
    assert done[-2:] == [("disk", tmp_path.name), ("gone", ".target.old")] and not (tmp_path / "target").exists()


def test_a_folder_replaced_halfway_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, part = tmp_path / "t", tmp_path / ".t.part"
    files.write(target / "a", "old")
    files.write(part / "a", "new")
    rename = Path.rename

    def killed(path: Path, to: Path) -> Path:
        if path == part:
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        files.put_folder(part, target)
    assert not target.exists()
    files.restore(target)
    files.restore(target)
    assert found(target) == {"a": b"old"}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EACCES, errno.ENOTSUP])
def test_a_system_that_cannot_sync_folders_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refused = failing(monkeypatch, Path.is_dir, code)
    files.write(tmp_path / "a", "a")
    target = tmp_path / "checkpoints" / "u1"
    checkpoint.write_tensors(checkpoint.aside(target), "weights", {"w": torch.arange(3.0)})
    checkpoint.complete(target, {"update": 1})
    assert torch.equal(checkpoint.read(target).tensors("weights")["w"], torch.arange(3.0))
    assert tmp_path in refused and target.parent in refused


def test_a_disk_that_fails_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, Path.is_dir, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.write(tmp_path / "a", "a")
    monkeypatch.undo()
    failing(monkeypatch, Path.is_file, errno.EINVAL)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)), files.folder_aside(tmp_path / "t") as part:
        (part / "a").touch()
    assert not (tmp_path / "t").exists()


# Locks ----------------------------------------------------------------------------------------------------------------

HOLD = """
import sys
if {hidden!r}:
    import warnings; warnings.simplefilter("ignore")
    sys.modules["fcntl"] = None
from pathlib import Path
from ponder.base.files import locked
with locked(Path({path!r}), 5) as ours:
    print(ours, flush=True)
    sys.stdin.read()
"""


def hold(path: Path, without_fcntl: bool = False) -> subprocess.Popen[str]:
    code = HOLD.format(path=str(path), hidden=without_fcntl)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT
    )
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    return process


def test_a_lock_is_held_by_the_living_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.lock"
    assert files.holder(path) is None
    with files.locked(path) as ours, files.locked(path) as twice:
        assert ours and not twice
        assert f"pid {os.getpid()} on " in str(files.holder(path))
    assert files.holder(path) is None
    with hold(path) as process:
        assert f"pid {process.pid} on " in str(files.holder(path))
        with files.locked(path, 0.2) as ours:
            assert not ours
        process.kill()
    assert files.holder(path) is None
    with files.locked(path) as ours:
        assert ours


def test_a_lock_excludes_where_the_system_has_no_fcntl(tmp_path: Path) -> None:
    """A second process, as well without `fcntl`, gets it only once the first has let go."""
    path = tmp_path / "x.lock"
    code = HOLD.format(path=str(path), hidden=True).replace(", 5)", ")")
    with hold(path, without_fcntl=True) as process:
        again = [sys.executable, "-c", code]
        assert subprocess.run(again, input="", stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT).stdout == "False\n"
        process.communicate("")
    assert subprocess.run(again, input="", stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT).stdout == "True\n"


# Other systems --------------------------------------------------------------------------------------------------------


def sources(*folders: str) -> list[tuple[Path, ast.Module]]:
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > len(folders)
    return [(path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def test_no_module_needs_a_unix_to_be_imported() -> None:
    """Imports that our own modules make fail as they would elsewhere; what others import is their own affair."""
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path, _ in sources("ponder")]
    names.remove("ponder.__main__")
    code = f"""
import builtins, importlib
real = builtins.__import__
def elsewhere(name, globals=None, *rest):
    if name in {UNIX_ONLY!r} and str((globals or {{}}).get("__name__")).startswith("ponder"):
        raise ImportError(f"{{globals['__name__']}} imports {{name}}")
    return real(name, globals, *rest)
builtins.__import__ = elsewhere
for name in {names!r}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def unsaid(node: ast.AST) -> bool:
    """Whether a call reads or writes text in whatever encoding the system has."""
    if not isinstance(node, ast.Call) or any(k.arg == "encoding" for k in node.keywords):
        return False
    given = {k.arg: k.value for k in node.keywords}
    words = [a.value for a in (*node.args, given.get("mode")) if isinstance(a, ast.Constant)]
    binary = any(isinstance(word, str) and "b" in word for word in words)
    if isinstance(node.func, ast.Name):
        return node.func.id == "open" and not binary
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "open":  # of a path: others are given what to open
        return not binary and len(words) == len(node.args)
    if any(isinstance(given.get(k), ast.Constant) for k in ("text", "universal_newlines")):
        return node.func.attr in ("run", "Popen", "check_output")
    return (node.func.attr == "read_text" and not node.args) or (node.func.attr == "write_text" and len(node.args) == 1)


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("p.read_text()", True),
        ("p.write_text(t)", True),
        ("p.open()", True),
        ("p.open('a')", True),
        ("open(p)", True),
        ("open(p, 'w')", True),
        ("subprocess.run(c, text=True)", True),
        ("p.read_text(encoding='utf-8')", False),
        ("p.open('rb')", False),
        ("open(p, mode='wb')", False),
        ("Dataset.open(path)", False),
        ("subprocess.run(c)", False),
    ],
)
def test_the_next_test_sees(code: str, wrong: bool) -> None:
    assert unsaid(ast.parse(code, mode="eval").body) is wrong


def test_all_text_is_utf_8() -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for path, tree in sources("ponder", "tests", "benchmarks")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and unsaid(node)
    ]
    assert not wrong, f"say encoding='utf-8' in {', '.join(wrong)}"
