"""Each class of faults with the contract test that holds all members to its mechanism, and the members which that test walks.

    python -m benchmarks.contracts            print the table and write benchmarks/records/contracts.json
    python -m benchmarks.contracts --check    exit with 1 if a contract leaves a member out, or the table is another

The members are those that pytest collects: a new calibrator, metric, loss or command is walked without a line being written.
"""

import argparse
import inspect
import io
import json
import sys
from collections import defaultdict
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stability import commands
from calibrant import calibrators, losses, metrics
from calibrant.calibrators import Calibrator  # type: ignore[attr-defined]

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "benchmarks" / "records" / "contracts.json"
# The class of faults, the file of its contract below tests/, the test, and whose members it has to walk.
CLASSES = (
    ("a row's constant, dtype, layout or kernel changes a figure", "contracts/test_metrics.py",
     "test_only_the_probabilities_of_the_rows_count", "metrics"),
    ("it changes a fit, or hides leaked rows", "contracts/test_calibrators.py",
     "test_only_the_probabilities_of_the_fitting_rows_count", "calibrators"),
    ("it changes a loss", "contracts/test_losses.py", "test_a_constant_added_to_a_row_changes_nothing", "losses"),
    ("a crash has the exit code of an answer", "cli/test_commands.py",
     "test_a_crash_of_ours_is_one_sentence_and_exit_code_70", "commands"),
    ("a changed byte of a state is read", "contracts/test_tampering.py",
     "test_a_bit_that_changed_anywhere_in_a_state_is_noticed", "states"),
    ("a broken or foreign state is read", "contracts/test_calibrators.py", "test_hostile_files_are_refused", "calibrators"),
    ("autocast, the end of a precision or NaN changes an answer", "contracts/test_calibrators.py",
     "test_rows_are_answered_as_what_they_are_at_the_ends_of_each_precision_under_autocast_and_with_nan", "calibrators"),
    ("confidences of decisions are taken for a class's", "contracts/test_calibrators.py",
     "test_confidences_of_decisions_are_fitted_as_two_classes_and_taken_for_nothing_else", "calibrators"),
    ("autocast changes a loss", "contracts/test_losses.py", "test_autocast_does_not_lower_its_precision", "losses"),
    ("a dtype changes a figure", "contracts/test_metrics.py",
     "test_every_dtype_gives_the_figure_of_its_values", "metrics"),
    ("a raw error of a public callable", "contracts/test_hostile.py", "test_wrong_arguments_get_one_sentence", "modules"),
    ("frequency weights are no repetitions", "contracts/test_metrics.py", "test_it_keeps_what_every_metric_keeps", "metrics"),
    ("no rows give a figure", "contracts/test_empty.py", "test_every_metric_refuses_no_rows", "metrics"),
    ("an option is accepted and ignored", "cli/test_options.py",
     "test_every_option_has_an_effect_or_is_refused_everywhere", "commands"),
    ("what a public check holds others to is not kept here", "contracts/test_calibrators.py",
     "test_every_calibrator_keeps_the_contract", "calibrators"),
    ("the same of metrics", "contracts/test_metrics.py", "test_it_keeps_what_every_metric_keeps", "metrics"),
    ("the same of losses", "contracts/test_losses.py", "test_it_keeps_the_contract_that_others_are_held_to", "losses"),
)  # fmt: skip


class Collected:
    """A plugin of pytest that keeps what each test walks."""

    def __init__(self) -> None:
        self.walked: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the member and the number of cases of every collected test: its parameter of that meaning, by its name."""
        for item in session.items:
            params = getattr(getattr(item, "callspec", None), "params", {})
            for member in [params[key] for key in ("name", "metric", "family") if key in params][:1]:
                where = Path(item.path).relative_to(ROOT / "tests").as_posix(), getattr(item, "originalname", "")
                self.walked[where][member if isinstance(member, str) else type(member).__name__] += 1


def exported(module: Any, base: type) -> set[str]:
    """Return the names of a family's members that can be made."""
    found = {name: getattr(module, name) for name in module.__all__}
    return {
        n for n, one in found.items() if inspect.isclass(one) and issubclass(one, base) and not inspect.isabstract(one)
    }


def rows() -> list[dict[str, Any]]:
    """Return the table: the members that exist, those that are walked, the cases, and what is left out."""
    kept = Collected()
    files = sorted({str(ROOT / "tests" / file) for _, file, _, _ in CLASSES})
    with redirect_stdout(io.StringIO()):
        pytest.main([*files, "--collect-only", "-q", "-p", "no:cacheprovider"], plugins=[kept])
    fitted = exported(calibrators, Calibrator)
    members = {
        "calibrators": fitted, "states": fitted | {"Monitor", "CostRule", "Abstention"},
        "metrics": exported(metrics, metrics.Metric), "losses": exported(losses, losses.Loss),
        "commands": {name for name, _ in commands()}, "modules": set(),
    }  # fmt: skip
    found = []
    for fault, file, test, family in CLASSES:
        walked = kept.walked[file, test]
        found.append({
            "fault": fault, "contract": f"tests/{file}::{test}", "family": family, "members": len(walked),
            "cases": sum(walked.values()), "left out": sorted(members[family] - set(walked)),
        })  # fmt: skip
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the table and keep it, or compare it with what is kept."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare the table, write nothing")
    check, found = parser.parse_args(arguments).check, rows()
    for row in found:
        print(f"{row['members']:4} {row['family']:12} {row['cases']:5} cases  {row['fault']}  {row['contract']}")
        print(*(f"     left out: {name}" for name in row["left out"]), sep="\n", end="\n" * bool(row["left out"]))
    if not check:
        TABLE.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(not row["members"] for row in found) or json.loads(TABLE.read_text()) != found)


if __name__ == "__main__":
    sys.exit(main())
