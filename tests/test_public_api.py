"""The public surface: what each family exports, that nothing is forgotten or leaks, and that all of it is documented."""

import enum
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import calibrant
from calibrant.calibrators import Calibrator
from calibrant.metrics import Metric

ROOT = Path(calibrant.__file__).parent
HEAVY = ("matplotlib", "scipy", "sklearn", "lightning", "pyarrow", "pandas", "ray", "onnx", "transformers", "datasets")

# Where a method is one file and one export line, nothing public may be missing from the export list.
REGISTRIES = ("theory", "losses", "metrics", "calibrators")
KINDS: dict[str, type] = {"losses": torch.nn.Module, "metrics": Metric, "calibrators": Calibrator}
CHOICES = {"losses": "choose-a-loss.md", "metrics": "choose-a-metric.md", "calibrators": "choose-a-calibrator.md"}


def families() -> list[str]:
    """Return the public packages and modules directly under calibrant; what users need of ``data`` the package exports."""
    names = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/__init__.py")}
    return sorted(name for name in names if not name.startswith("_") and name not in {"adapters", "cli", "data"})


def family(name: str) -> types.ModuleType:
    return importlib.import_module(f"calibrant.{name}")


def is_ours(value: object, module: str) -> bool:
    """Say whether ``value`` is a class or function defined in ``module`` or below it."""
    defined = getattr(value, "__module__", None) or ""
    return (inspect.isclass(value) or inspect.isfunction(value)) and (defined + ".").startswith(module + ".")


def takes_arguments(value: object) -> bool:
    """Say whether calling ``value`` takes arguments that its own docstring has to explain."""
    if inspect.isclass(value) and (issubclass(value, (Warning, BaseException, enum.Enum)) or inspect.isabstract(value)):
        return False
    parameters = inspect.signature(value).parameters.values()
    return any(p.name not in {"self", "cls", "args", "kwargs"} for p in parameters)


@pytest.mark.parametrize("module", [calibrant, *map(family, families())], ids=lambda module: module.__name__)
def test_export_lists_name_what_exists_once(module: types.ModuleType) -> None:  # ruff's RUF022 keeps them sorted
    declared = list(module.__all__)
    assert len(declared) == len(set(declared))
    assert [member for member in declared if not hasattr(module, member)] == []


@pytest.mark.parametrize("name", KINDS)
def test_a_registry_exports_every_method_in_its_files(name: str) -> None:
    files = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / name).rglob("*.py") if path.stem[0] != "_"]
    members = [one for file in files for one in vars(family(".".join(file.parts))).items() if one[0][0] != "_"]
    classes = {n: v for n, v in members if is_ours(v, f"calibrant.{name}") and inspect.isclass(v)}
    found = {n: v for n, v in classes.items() if issubclass(v, KINDS[name]) and not inspect.isabstract(v)}
    methods = {n for n, v in found.items() if not v.__subclasses__()}  # a base may lack a thing without being abstract
    assert len(methods) > 10
    assert methods - set(family(name).__all__) == set(), "export these, or make them private"


@pytest.mark.parametrize("name", [name for name in CHOICES if name in families()])
def test_every_method_has_its_row_in_the_documentation(name: str) -> None:
    page = ROOT.parent.parent / "docs" / CHOICES[name]
    rows = {line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `")}
    rows = {row.partition("(")[0] for row in rows}
    methods = {member for member in family(name).__all__ if not inspect.isabstract(getattr(family(name), member))}
    assert methods - rows == set(), f"add a row to docs/{page.name}"
    assert rows - set(family(name).__all__) == set(), "these do not exist"


@pytest.mark.parametrize("name", families())
def test_every_member_is_documented(name: str) -> None:
    module = family(name)
    # a type alias or a constant has no docstring of its own
    members = {one: getattr(module, one) for one in module.__all__ if is_ours(getattr(module, one), "calibrant")}
    assert {one: wrong for one, value in members.items() if (wrong := undocumented(value, name in REGISTRIES))} == {}


def undocumented(value: Any, with_example: bool) -> str | None:
    """Return what the docstring of a public class or function lacks."""
    text = (vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
    if not text.strip().split("\n")[0].endswith((".", "…", ":", ")")):
        return "a first sentence"
    fields = "Attributes:" if inspect.isclass(value) and issubclass(value, tuple) else "Args:"
    if takes_arguments(value) and fields not in text:
        return "its arguments"
    if with_example and not inspect.isabstract(value) and ">>>" not in text:
        return "an example that runs"
    return None


FIRST_USE = """
import sys
import calibrant
assert "torch" not in sys.modules, "PyTorch is imported with the first name that needs it"
assert set(calibrant.__all__) <= set(dir(calibrant))
assert calibrant.rows.MemoryRows, "a part that __all__ leaves out is an attribute"
import torch
before = set(sys.modules)
data = calibrant.Predictions.from_logits(3 * torch.eye(4), [0, 1, 2, 0])
calibrant.metrics.ECE()(data)
calibrant.calibrators.TemperatureScaling().fit(data.logits, data.labels)
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
print(*(name for name in ("torch._dynamo", "sympy") if name in set(sys.modules) - before))
"""


def test_importing_calibrant_imports_nothing_heavy() -> None:
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=True, env=here)
    names, compilers = done.stdout.split("\n")[:2]
    assert sorted(set(names.split()) & {*HEAVY, "numba", "triton"}) == []
    assert compilers == ""


def test_the_page_of_what_stays_is_written_from_the_code() -> None:
    from tests import stability  # which imports every family

    assert stability.PAGE.read_text() == stability.page(), "write it again: python -m tests.stability"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        calibrant.nonsense  # noqa: B018
