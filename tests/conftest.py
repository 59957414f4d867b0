"""What every test shares: real data, test vectors, thread pinning, and the list of skips that are allowed."""

import gc
import importlib
import importlib.util
import json
import os
import re
import tomllib
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


class SkipPolicy:
    """Fails a session that skipped a test for a reason ``skips.toml`` does not list."""

    def __init__(self, file: Path) -> None:
        entries = tomllib.loads(file.read_text())["skip"]
        self.allowed = [(re.compile(entry["reason"]), entry.get("tests", "")) for entry in entries]
        self.refused: list[str] = []

    def allows(self, node: str, reason: str) -> bool:
        """Say whether test ``node`` may skip for ``reason``."""
        return any(pattern.search(reason) and node.startswith(where) for pattern, where in self.allowed)

    def see(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Note the skip that ``report`` tells of, if it does; expected failures are not skips."""
        if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
            return
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not self.allows(report.nodeid, reason):
            self.refused.append(f"{report.nodeid}: {reason}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.see(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.see(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.refused and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.refused:
            terminalreporter.section("skips that tests/skips.toml does not allow", red=True)
            for line in self.refused:
                terminalreporter.line(line)


def pytest_collection() -> None:
    gc.disable()  # what is collected stays to the end


def pytest_collection_finish() -> None:
    gc.freeze()  # … so that no search for garbage goes through it again, the last ones when the process ends included
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipPolicy(TESTS / "skips.toml"), "skip-policy")
