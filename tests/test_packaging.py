"""pyproject.toml, constraints.txt, the errors that name extras, and the citation agree with each other."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import calibrant

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

DOCUMENTATION = {Requirement(text) for text in EXTRAS["docs"]}


def pins(file: str = "constraints.txt") -> dict[str, Version]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def requirements() -> list[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != PROJECT["name"]]


def test_every_requirement_is_pinned_within_its_range() -> None:
    pinned = pins()
    assert [one for one in requirements() if pinned[canonicalize_name(one.name)] not in one.specifier] == []


def test_the_lowest_version_declared_is_the_one_that_is_tested() -> None:
    tested = pins("constraints-lowest.txt")
    for requirement in requirements():
        named = tested.get(canonicalize_name(requirement.name))
        if requirement in DOCUMENTATION:
            assert named is None, requirement
            continue
        assert named in requirement.specifier, requirement
        (lowest,) = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
        assert named.release[: len(lowest.release)] == lowest.release, requirement


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-lowest.txt"])
def test_constraints_are_plain_pins(file: str) -> None:
    assert all("/" not in str(name) and not version.local for name, version in pins(file).items())


def test_the_extra_all_holds_every_extra_for_users() -> None:
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.extras == set(EXTRAS) - {"all", "dev", "docs"}


# A use of each extra; the compiled loops (fast) alone are done without.
USES = {
    "study": "import calibrant.study",
    "ray": "calibrant.scale.on_ray('.')",
    "sklearn": "import calibrant.adapters.sklearn",
    "torchmetrics": "import calibrant.adapters.torchmetrics",
    "lightning": "import calibrant.adapters.lightning",
    "onnx": "from calibrant.adapters.onnx import export; export(calibrant.calibrators.Identity().fit([[3.0, 1]], [0]), 'c.onnx')",
    "transformers": "import calibrant.adapters.transformers",
}
WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import json, calibrant, calibrant.scale

said = {}
for extra, use in USES.items():
    try:
        exec(use)
    except calibrant.errors.MissingExtraError as error:
        said[extra] = str(error)
print(json.dumps(said))
"""
IMPORTED = {"mlflow-skinny": "mlflow", "pillow": "PIL", "scikit-learn": "sklearn"}  # where another name is imported


@pytest.mark.slow
def test_each_extra_that_is_missing_is_named_where_it_is_used(tmp_path: Path) -> None:
    users = {name: EXTRAS[name] for name in set(EXTRAS) - {"all", "dev", "docs"}}
    names = {Requirement(text).name for extra in users.values() for text in extra}
    script = WITHOUT.replace("HIDDEN", repr({IMPORTED.get(name, name) for name in names})).replace("USES", repr(USES))
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert set(said) == set(users) - {"fast"}
    assert [extra for extra, sentence in said.items() if f"Calibrant's extra {extra!r}" not in sentence] == []


def test_the_citation_has_the_version() -> None:
    assert f"\nversion: {calibrant.__version__}\n" in (ROOT / "CITATION.cff").read_text()
