"""Measures of the source tree: how far a reader walks, who imports private names, how long things are.

``python -m benchmarks.house`` prints them for the tree it stands in; ``--source DIR`` measures another checkout's ``src``.
"""

import argparse
import ast
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent.parent / "src"

# What is run to see which files a call walks through: (prepared, traced).
WALKS = {
    "files FocalLoss forward walks": (
        "from calibrant.losses import FocalLoss; loss = FocalLoss(2.0); z = torch.randn(8, 3); y = torch.zeros(8).long()",
        "loss(z, y)",
    ),
    "files TemperatureScaling.fit walks": (
        "from calibrant.calibrators import TemperatureScaling as T; z = torch.randn(50, 3); y = z.argmax(1)",
        "T().fit(3 * z, y)",
    ),
    "files an HTML report walks": (
        (
            "import tempfile; from pathlib import Path; import calibrant; from calibrant.cli import main; "
            "g = torch.Generator().manual_seed(0); z = 3 * torch.randn(600, 3, generator=g); "
            "y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]; d = Path(tempfile.mkdtemp()); "
            "calibrant.save_predictions(d / 'p.npz', {'test': calibrant.Predictions.from_logits(z, y)}); "
            "from calibrant import report; import matplotlib; "
            "model = calibrant.load_predictions(d / 'p.npz')"
        ),
        "subprocess_main(['report', str(d / 'p.npz'), '-o', str(d / 'r.html')])",
    ),
}
COMMENT = re.compile(r"(?m)^(?:[^\n\"]*\S  |\s*)# (?!type:|fmt:|noqa)")
TRACE = """
import sys, torch, warnings
warnings.simplefilter("ignore")
def subprocess_main(arguments):
    sys.argv = ["calibrant", *arguments]
    try:
        main()
    except SystemExit:
        pass
{prepare}
seen = set()
def trace(frame, event, _):
    name = frame.f_code.co_filename
    if "/calibrant/" in name and not frame.f_code.co_name.startswith("<module"):
        seen.add(name)
    return None
sys.setprofile(trace)
{run}
sys.setprofile(None)
own = [name for name in seen if not name.split("/calibrant/")[-1].startswith("_")]  # foundations, left out, begin with _
print("WALKED", len(seen), len(own))
"""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function in ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many arguments a function takes, ``self`` and ``cls`` left out."""
    args = function.args
    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return len([name for name in names if name not in {"self", "cls"}])


def private_imports(path: Path, source: Path) -> int:
    """Return how many names of another family's private modules, or private names, a file imports."""
    family = path.relative_to(source / "calibrant").parts[0]
    found = 0
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("calibrant."):
            continue
        parts = (node.module or "").split(".")[1:]
        if parts[0] == family or parts[0].startswith("_"):
            continue
        inside = any(part.startswith("_") for part in parts[1:])
        found += sum(1 for alias in node.names if inside or alias.name.startswith("_"))
    return found


def measure(source: Path) -> dict[str, float]:
    """Return the measures of the package under ``source``."""
    files = sorted((source / "calibrant").rglob("*.py"))
    texts = {path: path.read_text() for path in files}
    lines = [len(text.splitlines()) for text in texts.values()]
    found = [f for text in texts.values() for f in functions(ast.parse(text))]
    lengths = [(f.end_lineno or 0) - f.lineno + 1 for f in found]
    docstrings = [f.body[0] for f in found]
    code = [
        length - ((d.end_lineno or 0) - d.lineno + 1 if ast.get_docstring(f) is not None else 0)
        for f, d, length in zip(found, docstrings, lengths, strict=True)
    ]
    public = [p for p in files if not p.is_relative_to(source / "calibrant" / "study" / "presets")]
    figures: dict[str, float] = {
        "files": len(files),
        "lines in the longest file": max(lines),
        "lines of a file, median": statistics.median(lines),
        "functions above 40 lines": sum(length > 40 for length in lengths),
        "functions above 40 lines, docstring left out": sum(length > 40 for length in code),
        "signatures of more than 8 arguments": sum(arguments_of(f) > 8 for f in found),
        "imports of another family's private names": sum(private_imports(path, source) for path in public),
        "files in cli/": len(list((source / "calibrant" / "cli").glob("*.py"))),
        "ClassVar annotations": sum(text.count("ClassVar[") for text in texts.values()),
        "overrides under type: ignore": sum(text.count("type: ignore[override]") for text in texts.values()),
        "writes to __dict__": sum(len(re.findall(r"__dict__\[.*\] = ", text)) for text in texts.values()),
        "comments in a hundred lines, pragmas left out": round(
            100 * sum(len(COMMENT.findall(text)) for text in texts.values()) / sum(lines), 2
        ),
    }
    for name, walk in WALKS.items():
        figures[name], figures[f"{name}, foundations left out"] = walked(source, *walk)
    return figures


def walked(source: Path, prepare: str, run: str) -> tuple[int, int]:
    """Return how many files of the package ``run`` enters, and how many of them are no foundations."""
    done = subprocess.run(
        [sys.executable, "-c", TRACE.format(prepare=prepare, run=run)],
        capture_output=True, text=True, env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "MPLBACKEND": "Agg"},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("WALKED")]
    if not lines:
        raise SystemExit(f"expected the traced call to end, got: {done.stderr[-500:]}")
    total, own = lines[-1].split()[1:]
    return int(total), int(own)


def main() -> None:
    """Print the measures, as a table or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=HERE, help="the src folder of a checkout")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    figures = measure(options.source.resolve())
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for name, figure in figures.items():
        print(f"{name:62} {figure:8g}")


if __name__ == "__main__":
    main()
