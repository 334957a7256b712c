"""Runs docs/research.ipynb and stores what its cells print and draw: `python -m tools.notebook`.

Only the code is written by hand; no Jupyter is needed. Beside `print`, a cell shows the value of its last line and the
figures it leaves open, as in Jupyter. Trains in a temporary folder.
"""

import ast
import base64
import io
import json
import os
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

NOTEBOOK = Path(__file__).parents[1] / "docs" / "research.ipynb"


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Execute the code cells in order, in the current folder, and put their outputs into the notebook. Returns the
    names that the cells defined."""
    names: dict[str, Any] = {"__name__": "notebook"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, 1):
        cell["execution_count"], cell["outputs"] = count, _outputs("".join(cell["source"]), names, count)
    return names


def _outputs(code: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    from matplotlib import pyplot

    tree, value = ast.parse(code), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    out: list[dict[str, Any]] = []
    if text := printed.getvalue():
        out.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
        out.append(_shown("display_data", {"image/png": base64.b64encode(picture.getvalue()).decode()}))
    pyplot.close("all")
    if value is not None and not code.rstrip().endswith(";"):
        shown = _shown("execute_result", {"text/plain": repr(value).splitlines(keepends=True)})
        out.append({**shown, "execution_count": count})
    return out


def _shown(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"output_type": kind, "data": data, "metadata": {}}


def main() -> None:
    matplotlib.use("agg")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run(notebook)
        os.chdir(NOTEBOOK.parent)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
