"""pyproject.toml, constraints.txt, the errors that name extras, and the citation agree with each other."""

import ast
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


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    assert pins()[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_the_lowest_version_declared_is_the_one_that_is_tested(requirement: Requirement) -> None:
    named = pins("constraints-lowest.txt").get(canonicalize_name(requirement.name))
    if requirement in DOCUMENTATION:
        assert named is None
    else:
        assert named in requirement.specifier
        (lowest,) = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
        assert named.release[: len(lowest.release)] == lowest.release


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-lowest.txt"])
def test_constraints_are_plain_pins(file: str) -> None:
    assert all("/" not in str(name) and not version.local for name, version in pins(file).items())


def test_the_extra_all_holds_every_extra_for_users() -> None:
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.extras == set(EXTRAS) - {"all", "dev", "docs"}


def test_errors_name_extras_that_exist() -> None:
    calls = [
        node
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("MissingExtraError")
    ]
    named = {ast.literal_eval(k.value) for call in calls for k in call.keywords if k.arg == "extra"}
    assert named - set(EXTRAS) == set()


def test_the_citation_has_the_version() -> None:
    assert f"\nversion: {calibrant.__version__}\n" in (ROOT / "CITATION.cff").read_text()
