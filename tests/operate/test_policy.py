"""Policies in TOML: what they hold, and one sentence for what they cannot."""

import os
import re
from pathlib import Path

import pytest

from calibrant.errors import CalibrantError
from calibrant.operate.check import Policy, read_limits


def test_a_policy_file_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('by = "region"\n[maximum]\nece = 0.03\n[minimum]\naccuracy = 0.9\n[no_worse]\nnll = 0.005\n')
    policy = Policy.from_file(path)
    assert (policy.maximum, policy.no_worse, policy.by) == ({"ece": 0.03}, {"nll": 0.005}, ("region",))
    merged = policy.updated(Policy(maximum=read_limits(["ece=.05", "brier=.1"], option="--max"), by=("sex",)))
    assert merged.maximum == {"ece": 0.05, "brier": 0.1}
    assert merged.by == ("region", "sex")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[max]\nece = 0.03", "[maximum], [minimum], [no_worse] and by in the policy, got 'max'"),
        (
            "[maximum]\nece = '3 %'",
            "ece under [maximum] in the policy as a number, got '3 %'; write for example ece = 0.03",
        ),
        ("[maximum]\nece = true", "pass a number"),
        ("maximum = 3", "[maximum] in the policy as a table"),
        ("by = 3\n[maximum]\nece = 0.1", "as names of columns"),
        ("", "at least one limit"),
        ("[maximum", "expected TOML in the policy"),
        ("[maximum]\nece = .03", "correct it (a number is 0.03, not .03)"),
        ("[maximum]\nece = 1" + "0" * 400, "ece under [maximum] in the policy in (-inf, inf), got inf"),
        ("[maximum]\nece = nan", "got nan"),
        ("[maximum]\nece = 1" + "0" * 5000, "expected TOML in the policy"),
    ],
)
def test_a_wrong_policy_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(CalibrantError, match=re.escape(message)):
        Policy.from_text(text)


@pytest.mark.parametrize("text", ["ece", "ece=", "=3", "ece=three", "ece=nan"])
def test_a_wrong_limit_on_the_command_line_names_its_option(text: str) -> None:
    with pytest.raises(CalibrantError, match="expected --max METRIC=NUMBER, got"):
        read_limits([text], option="--max")


def test_a_pipe_or_a_wrong_kind_of_limit_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "policy.toml")
    with pytest.raises(CalibrantError, match="expected a regular file, got a pipe at "):
        Policy.from_file(tmp_path / "policy.toml")
    with pytest.raises(CalibrantError, match="path as text"):
        Policy.from_file(0)  # type: ignore[arg-type]
    with pytest.raises(CalibrantError, match=r"\[maximum\] in the policy as a table"):
        Policy(maximum=0.03)  # type: ignore[arg-type]
    with pytest.raises(CalibrantError, match="by in the policy as names of columns"):
        Policy(maximum={"ece": 0.03}, by="site")  # type: ignore[arg-type]
    with pytest.raises(CalibrantError, match="expected TOML"):
        Policy.from_text("ece = " + "[" * 100_000)
