"""Where kernels come from: compiled once, kept, and done without where that is not possible."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ponder.base import native
from ponder.base.native import Library, Missing
from tests.support import ROOT

LONG = 120
"""Seconds after which a process is taken to hang."""

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CC") or "cc") is None
    or torch.backends.cpu.get_cpu_capability() not in native.LEVELS
    or os.environ.get(native.SWITCH) == "0",
    reason="no compiler, or one for another processor",
)


# A small library of its own -------------------------------------------------------------------------------------------

TWICE = "void twice(long n, const float *x, float *y) { for (long i = 0; i < n; i++) y[i] = 2 * x[i]; }\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source that compiles in no time, and the folder, not there yet, where what is made of it is kept."""
    source = tmp_path / "twice.c"
    source.write_text(TWICE, encoding="utf-8")
    monkeypatch.setattr(native, "SOURCE", source)
    monkeypatch.setattr(native, "SIGNATURES", {"twice": "lpp"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(native.SWITCH, raising=False)
    return native.folder()


def anew() -> Library | Missing:
    """What a new process would find."""
    return native._loaded.__wrapped__(native.SOURCE, torch.backends.cpu.get_cpu_capability())


def works(library: Library | Missing) -> bool:
    assert isinstance(library, Library), str(library)
    x, y = torch.arange(5.0), torch.empty(5)
    library("twice", 5, x, y)
    return torch.equal(y, 2 * x)


def compiler(folder: Path, script: str) -> str:
    """A program in the place of a compiler."""
    path = folder / "some-cc"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_what_was_compiled_is_kept(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert works(anew())
    (kept,) = cache.iterdir()
    assert kept.suffix == ".so"
    monkeypatch.setenv("CC", "/nonexistent/cc")
    assert works(anew()), "it was compiled again"
    native.SOURCE.write_text(TWICE.replace("2 *", "3 *"), encoding="utf-8")
    assert isinstance(anew(), Missing), "of another source"


def test_without_a_compiler_it_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonexistent/cc")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert "/nonexistent/cc" in str(native.find())
    assert native.library() is None and native.state() is None
    assert native.missing() == str(native.find())
    assert not cache.exists()


@pytest.mark.skipif(os.name == "nt", reason="the compiler is a shell script")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'cc: cannot do that' >&2; echo more >&2; exit 1", "cc: cannot do that"),
        ("exit 1", "no word"),
        ("exit 0", "cannot be loaded"),  # and made nothing
    ],
    ids=["says why", "says nothing", "makes nothing"],
)
def test_a_compiler_that_fails_is_quoted(
    script: str, said: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, script))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    text = native.missing()
    assert text is not None and said in text and "\n" not in text and "more" not in text


@pytest.mark.skipif(os.name == "nt", reason="the compiler is a shell script")
def test_a_compiler_that_does_not_end_is_given_up(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, "exec sleep 60"))
    monkeypatch.setattr(native, "PATIENCE", 0.1)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert "some-cc" in str(native.find())


@needs_compiler
def test_a_folder_that_cannot_be_written_costs_time_alone(cache: Path) -> None:
    cache.parents[1].write_text("in the way of a folder", encoding="utf-8")
    assert works(anew()) and works(anew())


@needs_compiler
@pytest.mark.parametrize("damage", ["empty", "garbage", "head", "directory"])
def test_what_is_damaged_in_the_cache_is_replaced(damage: str, cache: Path) -> None:
    assert works(anew())
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # not written over: this process has the old one in its memory
    if damage == "directory":
        kept.mkdir()
    else:
        kept.write_bytes({"empty": b"", "garbage": b"no library" * 999, "head": whole[:200]}[damage])
    assert works(anew())
    if damage != "directory":
        assert kept.stat().st_size == len(whole), "the next process would have to compile again"


@needs_compiler
def test_a_library_without_our_functions_is_replaced(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert works(anew())
    (kept,) = cache.iterdir()
    kept.unlink()
    other = native.SOURCE.with_name("other.c")
    other.write_text("void other(void) {}\n", encoding="utf-8")
    subprocess.run([os.environ.get("CC") or "cc", "-shared", "-fPIC", str(other), "-o", str(kept)], check=True)
    with kept.open("ab") as file:
        file.write(hashlib.sha256(kept.read_bytes()).digest())  # as whole as can be
    assert works(anew())


def test_a_variable_turns_it_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.SWITCH, "0")
    assert native.missing() == f"turned off by {native.SWITCH}=0"
    assert not cache.exists()


def test_a_program_that_was_packed_without_the_source_does_without(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "SOURCE", tmp_path / "kernels.c")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert "source cannot be read" in str(native.missing())


@needs_compiler
def test_one_can_do_without_for_a_while(cache: Path) -> None:
    assert native.library() is not None
    with native.without():
        with native.without():
            assert native.library() is None
        assert native.library() is None
    assert native.library() is not None


def test_other_processors_are_told_which_it_is_made_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    text = native.missing()
    assert text is not None and all(word in text for word in ("AVX2", "AVX-512", "DEFAULT"))


@needs_compiler
def test_for_avx2_nothing_wider_is_made_use_of(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = "#if defined(__AVX512F__) || !defined(__AVX2__) || !defined(__FMA__)\n#error another processor\n#endif\n"
    native.SOURCE.write_text(wide + TWICE, encoding="utf-8")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert works(native.find())


def test_parts_of_shared_work_are_all_of_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library.__new__(Library)
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for count in (0, 1, 2, 7, 100):
            done, parts = list[int](), list[int]()

            def work(first: int, last: int, part: int, done: list[int] = done, parts: list[int] = parts) -> None:
                done.extend(range(first, last))
                parts.append(part)

            library.shared(count, 1, work)
            assert sorted(done) == [*range(count)]
            assert sorted(parts) == [*range(native.sharing(count, 1))]
    with pytest.raises(ZeroDivisionError):
        library.shared(100, 1, lambda first, last, part: print(1 / (4 - part)))


# Processes of their own -----------------------------------------------------------------------------------------------

SWIGLU = """
import torch
from ponder.base import native
from ponder.config.schema import ModelConfig
from ponder.model.products import SwiGLU

def run():
    block = SwiGLU(48, ModelConfig(width=48, heads=1, expansion=1.0, inner_multiple=16))
    x = torch.randn(60, 48, requires_grad=True)
    out = block.joined(x, block.weights(60), None, None)
    out.backward(torch.randn(60, 48))
    return [out.detach(), x.grad, block.up.weight.grad, block.down.weight.grad]

def same():
    torch.manual_seed(0); ours = run()
    with native.without():
        torch.manual_seed(0); plain = run()
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, plain)) / torch.finfo().eps
"""


def begun(code: str, **variables: str) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", native.SWITCH)}
    return subprocess.Popen(
        [sys.executable, "-c", SWIGLU + code],
        env={**environment, **variables},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    )


def said(process: "subprocess.Popen[str]") -> str:
    """What it prints, if all went well."""
    try:
        text, _ = process.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children hold the pipe too
        text, _ = process.communicate()
        raise AssertionError(f"it hangs: {text}") from None
    assert process.returncode == 0, text
    return text


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A cache that two processes filled at once, and what they said."""
    folder = tmp_path_factory.mktemp("native")
    both = [begun("print(native.state(), same())", XDG_CACHE_HOME=str(folder)) for _ in range(2)]
    return folder, [said(process) for process in both]


def apart(text: str) -> tuple[str, float]:
    """What the kernels were made for, and how many units of the last place the two forms are apart."""
    state, units = text.split()
    return state, float(units)


SUMS = 48 + 2 * 32 + 60
"""Terms of the sums in SWIGLU, of its width, its inner width and its rows: so many roundings, one after the other."""


@needs_compiler
def test_two_processes_that_start_at_once_both_compile(warm: tuple[Path, list[str]]) -> None:
    for text in warm[1]:
        state, units = apart(text)
        assert state == torch.backends.cpu.get_cpu_capability()
        assert 0 < units < SUMS
    assert [path.suffix for path in (warm[0] / "ponder" / "native").iterdir()] == [".so"]


@needs_compiler
def test_the_next_process_needs_no_compiler(warm: tuple[Path, list[str]]) -> None:
    text = said(begun("print(native.state(), same())", XDG_CACHE_HOME=str(warm[0]), CC="/nonexistent/cc"))
    assert text == warm[1][0]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"CC": "/nonexistent/cc"}, "/nonexistent/cc"),
        ({"PONDER_NATIVE": "0"}, "PONDER_NATIVE"),
        ({"ATEN_CPU_CAPABILITY": "default"}, "AVX"),
    ],
    ids=["no compiler", "turned off", "another processor"],
)
def test_plain_forms_do_the_work_where_there_is_no_library(
    variables: dict[str, str], reason: str, tmp_path: Path
) -> None:
    if "CC" in variables and torch.backends.cpu.get_cpu_capability() not in native.LEVELS:
        pytest.skip("another processor")
    text = said(begun("print(native.missing()); print(same())", XDG_CACHE_HOME=str(tmp_path), **variables))
    why, units = text.splitlines()
    assert reason in why
    assert float(units) == 0, "the two are the same form"
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_the_form_for_avx2(tmp_path: Path) -> None:
    state, units = apart(
        said(begun("print(native.state(), same())", XDG_CACHE_HOME=str(tmp_path), ATEN_CPU_CAPABILITY="avx2"))
    )
    assert state == "AVX2"
    assert 0 < units < SUMS
    (kept,) = (tmp_path / "ponder" / "native").iterdir()
    assert "avx2" in kept.name


TRUNCATE = """
import pathlib
native.library()
(kept,) = native.folder().iterdir()
whole = kept.read_bytes()
kept.unlink()
kept.write_bytes(whole[: len(whole) * {share} // 100])
"""


@needs_compiler
@pytest.mark.parametrize("share", [30, 90])
def test_a_library_that_was_cut_off_is_replaced(share: int, warm: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Its head promises more than there is, and reading on is a signal that no process survives."""
    shutil.copytree(warm[0], tmp_path / "cache")
    said(begun(TRUNCATE.format(share=share), XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert said(begun("print(native.state(), same())", XDG_CACHE_HOME=str(tmp_path / "cache"))) == warm[1][0]


FORK = """
import os, sys
torch.set_num_threads(2)
native.LEAST = 1

torch.manual_seed(0)
block, x = SwiGLU(48, ModelConfig(width=48, heads=1, expansion=1.0, inner_multiple=16)), torch.randn(60, 48)

@torch.no_grad()
def bits():  # by our own threads alone: those of torch's OpenMP do not survive a fork
    return block.joined(x, block.weights(60), None, None).tolist()

before = bits()
assert native._threads, "no thread was used"
child = os.fork()
if child == 0:
    assert not native._threads
    print(before == bits(), bool(native._threads), flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
print(status, before == bits())
"""


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_child_has_threads_of_its_own(warm: tuple[Path, list[str]]) -> None:
    text = said(begun(FORK, XDG_CACHE_HOME=str(warm[0]), OMP_NUM_THREADS="1"))
    assert text.splitlines() == ["True True", "0 True"]
