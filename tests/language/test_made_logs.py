"""The small logs that the documentation reads are those that their script makes."""

from pathlib import Path

import pytest
from benchmarks.language import made


def test_the_logs_are_what_their_script_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = made.FOLDER
    monkeypatch.setattr(made, "FOLDER", tmp_path)
    made.main()
    names = sorted(path.name for path in kept.iterdir())
    assert names == ["answers.csv", "answers.jsonl", "choices.csv", "choices.jsonl"]
    assert [name for name in names if (tmp_path / name).read_bytes() != (kept / name).read_bytes()] == []
