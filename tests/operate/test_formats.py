"""JUnit as a parser reads it, Markdown, and GitHub's annotations."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from calibrant.operate.check import Check, Line
from calibrant.operate.formats import annotations, to_junit, to_markdown

LINES = (
    Line("ece", "maximum", 0.03, 0.01, 0.0, 0.02, 6000, "pass"),
    Line("error", "maximum", 0.1, 0.2, 0.15, 0.25, 6000, "fail", note="a | b <c> & 100 %\nsecond, line: x"),
    Line("accuracy", "minimum", 0.9, 0.91, 0.88, 0.94, 6000, "not enough evidence", more_rows=1234),
)
FOUND = Check(LINES, 0.0125)


@pytest.mark.parametrize(("strict", "failures", "skipped"), [(False, 1, 1), (True, 2, 0)])
def test_junit_counts_what_it_holds(strict: bool, failures: int, skipped: int) -> None:
    suite = ET.fromstring(to_junit(FOUND, strict=strict).encode()).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", str(failures), str(skipped))
    assert (len(suite.findall("*/failure")), len(suite.findall("*/skipped"))) == (failures, skipped)
    assert [case.get("name") for case in suite] == ["ece ≤ 0.03", "error ≤ 0.1", "accuracy ≥ 0.9"]
    assert "about 1,200 more rows would decide" in to_junit(FOUND)


def test_junit_is_read_by_a_junit_parser(tmp_path: Path) -> None:
    parser = pytest.importorskip("junitparser", reason="optional package 'junitparser' is not installed")
    path = tmp_path / "gate.xml"
    path.write_text(to_junit(FOUND))
    suite = next(iter(parser.JUnitXml.fromfile(str(path))))
    assert [case.is_passed for case in suite] == [True, False, False]
    assert [case.is_skipped for case in suite] == [False, False, True]


def test_a_table_of_markdown_keeps_its_columns() -> None:
    rows = [line for line in to_markdown(FOUND).splitlines() if line.startswith("|")]
    assert len(rows) == 5
    assert {len(row.replace("\\|", "").split("|")) for row in rows} == {8}


def test_annotations_are_one_line_each_and_escaped() -> None:
    error, warning = annotations(FOUND)
    assert error.startswith("::error title=error ≤ 0.1::")
    assert "%0A" in error
    assert "100 %25" in error
    assert "\n" not in error
    assert warning.startswith("::warning title=accuracy ≥ 0.9::")


@pytest.mark.slow
def test_the_assertion_passes_fails_and_skips_in_a_real_pytest_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom calibrant import Predictions\nfrom calibrant.testing import assert_calibrated\n"
        "@pytest.mark.parametrize('wrong', [1, 4, None])\n"
        "def test_it(wrong):\n"
        "    labels = [1, 0] if wrong is None else ([1] * (10 - wrong) + [0] * wrong) * 200\n"
        "    assert_calibrated(Predictions.from_binary_probs([0.9] * len(labels), labels), ece=0.05)\n"
    )
    command = [
        sys.executable,
        *["-m", "pytest", "-q", "-rsf", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "."],
    ]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 skipped" in done.stdout
    assert "ece ≤ 0.05: fail" in done.stdout
    assert "not enough evidence" in done.stdout
    assert "more rows would decide" in done.stdout.replace("\n", " ")


def test_names_in_markdown_are_text_and_not_html() -> None:
    line = replace(LINES[0], note="region=<script>alert(1)</script> & more")
    text = to_markdown(replace(FOUND, lines=(line,)))
    assert "<script>" not in text
    assert "&lt;script>alert(1)&lt;/script> &amp; more" in text
