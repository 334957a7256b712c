"""The web page as static files that need no server: the models as ONNX graphs, run and checked in the browser."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from ponder.base import files
from ponder.base.errors import UserError
from ponder.inference.export import export
from ponder.inference.solver import Shelf, Solver
from ponder.serve.pages import PAGE, POLICY, about_model, page_files, policy_text

RUNTIME, VERSION = "onnxruntime-web", "1.30.0"
PARTS = {
    "ort.js": ("ort.wasm.bundle.min.mjs", "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90"),
    "ort.wasm": ("ort-wasm-simd-threaded.wasm", "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2"),
}
"""Name on the site -> name in the package, and what it should be."""
RULED = {path.stem for path in (PAGE / "rules").glob("*.js")} - {"grid"}
"""Domains whose rules the page knows by itself."""
DRAWN = 200
"""Puzzles for the button "Random": the browser has no generator."""


def write_site(out: Path, models: Sequence[str] | None, ort: Path | None, say: Callable[[str], None]) -> list[str]:
    """Fill the folder; the models that are in it. Whatever else lies there (a CNAME, a .git) stays."""
    if out.exists() and not (out / "static" / "local.js").exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is no site of ponder: give a new or an empty folder")
    runtime = runtime_parts(ort)
    shelf = Shelf(models, search=None)
    ruled = [solver for solver in shelf.solvers if solver.domain.name in RULED]
    for solver in shelf.solvers:
        if solver not in ruled:
            _leave_out(solver, f"its domain, {solver.domain.name}, has no checker in the browser", named=not shelf.zoo)
    (out / "models").mkdir(parents=True, exist_ok=True)
    about = []
    for solver in ruled:
        graph = out / "models" / f"{solver.name}.onnx"
        try:
            described = export(solver.opened, graph, batch=1)
        except UserError as error:
            _leave_out(solver, str(error), named=not shelf.zoo)
            continue
        graph.with_name(graph.name + ".json").unlink()  # models.json has it
        drawn = [solver.domain.format(inputs) for inputs in solver.domain.sample(0, DRAWN)[0]]
        about.append({**about_model(solver), "any_size": False, "graph": described, "puzzles": drawn})
        say(f"  {solver.name:<16} {graph.stat().st_size / 1e6:.1f} MB")
    if not about:
        raise UserError("none of these models can run in the browser")
    names = [model["name"] for model in about]
    for graph in (out / "models").glob("*.onnx"):
        if graph.stem not in names:
            graph.unlink()
    for name, content in runtime.items():
        files.write(out / "ort" / name, content)
    for name, file in page_files().items():
        if name == "index.html":
            files.write(out / name, _without_server(file.content.decode()))
        else:
            files.write(out / "static" / name, file.content)
    files.write(out / "models.json", json.dumps(about, separators=(",", ":")))
    return names


def _leave_out(solver: Solver, why: str, named: bool) -> None:
    """A model that cannot come along: a line, or the end where somebody asked for it by name."""
    if named:
        raise UserError(f"{solver.name} cannot run in the browser: {why}")
    print(f"ponder: {solver.name} is left out: {why}", file=sys.stderr)


def _without_server(html: str) -> str:
    """The page for a host that sends no headers of ours: its policy stands in it, and it solves by itself."""
    policy = {name: words for name, words in POLICY.items() if name != "frame-ancestors"}  # counts in a header only
    policy["script-src"] += " 'wasm-unsafe-eval'"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy_text(policy)}">'
    for old, new in (
        ('data-solver="server"', 'data-solver="browser"'),
        ('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}'),
    ):
        assert html.count(old) == 1
        html = html.replace(old, new)
    return html


# The runtime ----------------------------------------------------------------------------------------------------------


def runtime_parts(folder: Path | None) -> dict[str, bytes]:
    """The runtime's files by their names on the site: from a folder that has the package, from the user's cache, or
    from npm into the cache."""
    if folder is not None:
        places = [folder / "dist", folder]
        inside = next((place for place in places if all((place / part).is_file() for part, _ in PARTS.values())), None)
        if inside is None:
            wanted = " and ".join(part for part, _ in PARTS.values())
            raise UserError(f"{folder} does not hold {wanted}: give the folder of the npm package {RUNTIME}")
        return {name: (inside / part).read_bytes() for name, (part, _) in PARTS.items()}
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ponder" / f"{RUNTIME}-{VERSION}"
    kept = {name: cache / part for name, (part, _) in PARTS.items()}
    if not all(path.is_file() and files.sha256(path) == PARTS[name][1] for name, path in kept.items()):
        for name, content in _from_npm().items():
            files.write(kept[name], content)
    return {name: path.read_bytes() for name, path in kept.items()}


def _from_npm() -> dict[str, bytes]:
    npm = shutil.which("npm")
    instead = f"--ort DIR takes a folder that has the package {RUNTIME}"
    if npm is None:
        raise UserError(
            f"the site needs {RUNTIME} {VERSION} and there is no npm to fetch it: install npm, or {instead}"
        )
    with tempfile.TemporaryDirectory() as aside:
        command = [npm, "pack", f"{RUNTIME}@{VERSION}", "--loglevel=error", "--fetch-retries=0"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", cwd=aside)
        packed = next(Path(aside).glob("*.tgz"), None)
        if done.returncode or packed is None:
            said = (done.stderr.strip().splitlines() or ["no word why"])[0].removeprefix("npm error ")
            raise UserError(f"npm could not fetch {RUNTIME} {VERSION} ({said}): try again later, or {instead}")
        found = {}
        with tarfile.open(packed) as package:
            for name, (part, wanted) in PARTS.items():
                member = package.extractfile(f"package/dist/{part}")
                found[name] = b"" if member is None else member.read()
                if sha256(found[name]).hexdigest() != wanted:
                    raise UserError(f"{part} of {RUNTIME} {VERSION} is not what it was (the sha256 differs): {instead}")
        return found
