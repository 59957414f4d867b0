"""What every test shares: real data, test vectors, thread pinning, and the list of skips that are allowed."""

import gc
import importlib
import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent

# One thread: sums keep their order, so numbers repeat; and parallel test processes do not fight over the cores.
# Set before torch is imported anywhere; an explicit setting of the user wins.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Ray runs its workers at niceness 15, so that beside a busy test process they would hardly run at all.
os.environ.setdefault("RAY_worker_niceness", "0")
# Tests take data from folders alone; a hub would only be asked by mistake.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")


def needs(*packages: str) -> list[pytest.MarkDecorator]:
    """Return what skips tests where an optional package is not installed, for ``pytestmark``; nothing is imported."""
    reason = "optional package '{}' is not installed".format
    return [pytest.mark.skipif(importlib.util.find_spec(one) is None, reason=reason(one)) for one in packages]


# Windows has no pipes among its files, no modes and locks of files as these tests use them, and another `bash`.
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


class late:  # noqa: N801 - called as a function is
    """A module that is imported when a test uses it: what takes seconds to import is no part of collecting the tests."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, member: str) -> Any:
        if member.startswith("_"):  # pytest asks every name of a module whether it is a test or a mock
            raise AttributeError(member)
        return getattr(importlib.import_module(self.name), member)


def find_data() -> Path | None:
    """Return the folder of real data: ``$CALIBRANT_DATA``, else ``../shared/data`` beside the checkout, else None."""
    named = os.environ.get("CALIBRANT_DATA")
    folder = Path(named) if named else TESTS.parent.parent / "shared" / "data"
    return folder.resolve() if folder.is_dir() else None


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data (``logits/``, ``toplabel/``, ``cifar10/`` …); skips the test where there is none."""
    folder = find_data()
    if folder is None:
        pytest.skip("no real data: neither $CALIBRANT_DATA nor ../shared/data is a folder")
    return folder


@pytest.fixture(scope="session")
def vectors() -> dict[str, dict[str, Any]]:
    """The entries of ``fixtures/vectors.json`` by name: ``vectors["focal_gamma_2"]["expected"]``."""
    entries = json.loads((TESTS / "fixtures" / "vectors.json").read_text())["vectors"]
    return {entry["name"]: entry for entry in entries}


ALLOWED_SKIPS = [
    (re.compile(entry["reason"]), entry.get("tests", ""))
    for entry in tomllib.loads((TESTS / "skips.toml").read_text())["skip"]
]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skips for a reason that ``skips.toml`` does not list; expected failures are no skips."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not any(pattern.search(reason) and report.nodeid.startswith(where) for pattern, where in ALLOWED_SKIPS):
            report.outcome, report.longrepr = "failed", f"tests/skips.toml does not allow to skip for {reason!r}"
    return report


def pytest_collection() -> None:
    gc.disable()  # what is collected stays to the end


def pytest_collection_finish() -> None:
    gc.freeze()  # … so that no search for garbage goes through it again, the last ones when the process ends included
    gc.enable()
