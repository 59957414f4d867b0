"""The shape of the source tree: which module may import which, what loads late, how many arguments there are."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
FILES = sorted((SOURCE / "calibrant").rglob("*.py"))

# Each line may import from the lines above it and from itself; names on one line that are joined by "|" not from each other.
LAYERS = """
errors
_files
_core
_kernel
data
rows
binning
scores
statistics
theory
losses | metrics
functional
calibrators
evaluate
operate
plot
scale
report | adapters | language
study
testing
__init__
cli
__main__
"""
RANK = {name.strip(): rank for rank, line in enumerate(LAYERS.split("\n")) for name in line.split("|") if name.strip()}

# Optional, or slow to import: wanted only by who uses what needs them.
HEAVY = {
    "PIL", "datasets", "jinja2", "lightning", "matplotlib", "numba", "onnx", "onnxruntime", "onnxscript", "pandas",
    "polars", "pyarrow", "ray", "scipy", "sklearn", "torchmetrics", "torchvision", "transformers", "triton",
}  # fmt: skip

MAX_ARGUMENTS = 8  # without self and cls
# Public signatures that are longer, each argument of them in use; a new one groups its arguments in a dataclass.
LONG_SIGNATURES = {("losses/adafocal.py", "__init__"), ("data/io.py", "read")}


def parts_of(path: Path) -> tuple[str, ...]:
    """Return ("calibrant", "losses", "focal") for losses/focal.py, and ("calibrant", "losses", "__init__") for its package."""
    return path.relative_to(SOURCE).with_suffix("").parts


def family_of(parts: tuple[str, ...]) -> str:
    """Return the name in LAYERS that a module ``calibrant.…`` belongs to."""
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def parsed(text: str) -> tuple[list[ast.stmt], list[ast.AST]]:
    """Return the statements and all nodes of a module's source, which several rules look at."""
    tree = ast.parse(text)
    return tree.body, list(ast.walk(tree))


def imports_of(text: str, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (line, dotted parts) of every import in ``text``, wherever it stands; ``package`` resolves relative ones."""
    for node in parsed(text)[1]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield node.lineno, (*base, alias.name)


def imports_at_load(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yield (line, top package) of what importing a module imports: not what functions or TYPE_CHECKING blocks do."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports_at_load(node.orelse)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, (node.module or "").split(".")[0]
        else:
            for field in ("body", "handlers", "orelse", "finalbody"):
                yield from imports_at_load(getattr(node, field, []))


def order_faults(parts: tuple[str, ...], text: str) -> list[str]:
    """Return the imports of the module ``parts`` with source ``text`` that run against LAYERS."""
    mine = family_of(parts)
    if mine not in RANK:
        return [f"{mine} has no place in LAYERS: give it one"]
    faults = []
    for line, target in imports_of(text, parts[:-1]):
        if target[0] != "calibrant":
            continue
        other = target[1] if len(target) > 1 and target[1] in RANK else "__init__"
        if other == mine:
            continue
        if RANK.get(other, len(RANK)) >= RANK[mine]:
            faults.append(f"line {line}: {mine} imports {other}, which stands beside or after it")
    return faults


def private_faults(parts: tuple[str, ...], text: str) -> list[str]:
    """Return the imports of another family's private modules or names; the top-level foundations are for all."""
    faults = []
    for line, target in imports_of(text, parts[:-1]):
        if target[0] != "calibrant" or len(target) < 3 or target[1] == family_of(parts) or target[1].startswith("_"):
            continue
        if any(part.startswith("_") for part in target[2:]):
            faults.append(f"line {line}: {'.'.join(target)} is private to {target[1]}")
    return faults


def heavy_faults(parts: tuple[str, ...], text: str) -> list[str]:
    """Return the imports of heavy packages that loading the module ``parts`` would carry out."""
    if family_of(parts) == "adapters" and parts[-1] != "__init__":
        return []
    if parts[1:] == ("_kernel", "loops"):  # _kernel imports them late
        return []
    found = imports_at_load(parsed(text)[0])
    return [f"line {line}: import {name} inside the function that uses it" for line, name in found if name in HEAVY]


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of a function's arguments without self and cls."""
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return [one.arg for one in given if one.arg not in {"self", "cls"}]


def wide_faults(parts: tuple[str, ...], text: str) -> list[str]:
    """Return the functions with many arguments, which belong into a dataclass; the arguments of a command are its options."""
    if parts[1] == "cli":
        return []
    place = "/".join(parts[1:]) + ".py"
    return [
        node.name
        for node in parsed(text)[1]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and len(arguments_of(node)) > MAX_ARGUMENTS
        and (place, node.name) not in LONG_SIGNATURES
    ]


def type_faults(parts: tuple[str, ...], text: str) -> list[str]:
    """Return what is overridden or written behind the types: a base class is made abstract, values go to the constructor."""
    return re.findall(r"type: ignore\[override\]|__dict__(?:\[.*\] = |\.update\()", text)


RULES = (order_faults, private_faults, heavy_faults, wide_faults, type_faults)


@pytest.mark.parametrize("faults_of", RULES, ids=lambda rule: rule.__name__)
def test_no_module_breaks_a_rule(faults_of: Callable[[tuple[str, ...], str], list[str]]) -> None:
    found = {parts_of(path): faults_of(parts_of(path), path.read_text()) for path in FILES}
    assert len(found) > 100
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    ("faults_of", "module", "text"),
    [
        (order_faults, "errors", "from calibrant.data.predictions import Predictions"),
        (order_faults, "losses.focal", "if TYPE_CHECKING:\n    from calibrant.calibrators import Chain"),
        (order_faults, "metrics.ece", "def f():\n    from calibrant import report"),
        (order_faults, "theory.maps", "from ..losses import focal"),
        (order_faults, "calibrators.auto", "from calibrant import load"),
        (order_faults, "novelty", "import math"),
        (private_faults, "report.sums", "from calibrant.metrics._base import Metric"),
        (heavy_faults, "report.figures", "try:\n    import matplotlib\nexcept ImportError:\n    pass"),
    ],
)
def test_a_fault_is_found(faults_of: Callable[..., list[str]], module: str, text: str) -> None:
    assert len(faults_of(("calibrant", *module.split(".")), text)) == 1
