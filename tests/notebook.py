"""Run the notebook of the docs without Jupyter; `python -m tests.notebook` writes its outputs anew."""

import ast
import base64
import contextlib
import io
import json
import os
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "gemstones.ipynb"


def shown(value):
    """What Jupyter stores of the value of a cell."""
    if isinstance(value, Figure):
        png = io.BytesIO()
        value.savefig(png, format="png", dpi=80, metadata={"Software": None})
        return {
            "text/plain": "<Figure>",
            "image/png": base64.b64encode(png.getvalue()).decode(),
        }
    # `_repr_html_` first: the text alone is what a terminal shows.
    html = {"text/html": value._repr_html_()} if hasattr(value, "_repr_html_") else {}
    return {"text/plain": repr(value), **html}


def execute(notebook, names):
    """Run the code cells in order in one namespace, with the folder of the notebook as working folder."""
    with contextlib.chdir(NOTEBOOK.parent):
        for number, cell in enumerate((c for c in notebook["cells"] if c["cell_type"] == "code"), 1):
            body = ast.parse("".join(cell["source"])).body
            last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
            cell["execution_count"], cell["outputs"] = number, []
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
                if value is not None:
                    data = shown(value)
                    cell["outputs"] = [
                        {
                            "output_type": "execute_result",
                            "execution_count": number,
                            "metadata": {},
                            "data": data,
                        }
                    ]
    return notebook


if __name__ == "__main__":
    done = execute(json.loads(NOTEBOOK.read_text()), {})
    NOTEBOOK.write_text(json.dumps(done, indent=1, ensure_ascii=False) + os.linesep)
