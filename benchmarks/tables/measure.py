"""Outcomes of the corpus: read at once, by the printed command, refused with a command that works, or wrong numbers.

python -m benchmarks.tables.measure make FOLDER     # in an environment with the producers; what is missing is left out
python -m benchmarks.tables.measure read FOLDER     # prints a line a case, and the counts
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.cases import Case, Truth
from benchmarks.tables.colleagues import COLLEAGUES
from benchmarks.tables.corpus import CORPUS
from benchmarks.tables.deployed import DEPLOYED
from benchmarks.tables.elsewhere import ELSEWHERE
from benchmarks.tables.held_out import FRESH, HELD_OUT, LAST_LOOK, LATER, REFUSED, STRANGERS
from benchmarks.tables.producers import FURTHER, PRODUCERS
from benchmarks.tables.programs import PROGRAMS
from benchmarks.tables.roles import ROLES
from benchmarks.tables.tools import TOOLS

SETS = {
    "corpus": CORPUS,
    "held out": HELD_OUT,
    "later": LATER,
    "strangers": STRANGERS,
    "last look": LAST_LOOK,
    "refused": REFUSED,
    "fresh": FRESH,
    "producers": PRODUCERS,
    "further": FURTHER,
    "tools": TOOLS,
    "colleagues": COLLEAGUES,
    "elsewhere": ELSEWHERE,
    "roles": ROLES,
    "deployed": DEPLOYED,
    "programs": PROGRAMS,
}


def make(folder: Path) -> None:
    """Write every case that this environment has the producer of into a folder of its own."""
    for name, corpus in SETS.items():
        for at, case in enumerate(corpus):
            place = folder / name.replace(" ", "-") / f"{at:02d}"
            if (place / "truth.npz").exists():
                continue
            place.mkdir(parents=True, exist_ok=True)
            try:
                truth = case.write(place)
            except ImportError as error:
                print(f"{case.name}: no {error.name}")
                continue
            np.savez(place / "truth.npz", probs=truth.probs, labels=truth.labels)


def figures(truth: Truth) -> tuple[float, float]:
    """Return accuracy and Brier score; of pairs accuracy and the mean confidence's distance from it."""
    p, y = np.asarray(truth.probs, dtype=np.float64), np.asarray(truth.labels)
    if p.ndim == 1:
        return float(y.mean()), float(abs(p.mean() - y.mean()))
    rows = np.arange(len(y))
    one_hot = np.zeros_like(p)
    one_hot[rows, y] = 1
    return float((p.argmax(1) == y).mean()), float(((p - one_hot) ** 2).sum(1).mean())


def run(words: list[str]) -> tuple[int, str, str]:
    """Run the command line in this process; return its exit code, stdout and stderr."""
    from typer.testing import CliRunner

    from calibrant.cli import main

    done = CliRunner().invoke(main, words)
    return done.exit_code, done.stdout, done.stderr


def measured(words: list[str], *, pairs: bool) -> tuple[tuple[float, float] | None, str]:
    """Return the figures that ``calibrant evaluate`` gives, or None and what it says."""
    second = "ECE:bins=1" if pairs else "Brier"
    code, out, err = run(["evaluate", *words, "--metric", "Accuracy", "--metric", second, "--draws", "0", "--json"])
    if code:
        return None, err
    first, other = (row["value"] for row in json.loads(out)["rows"][:2])
    return (first, other), err


def printed_words(err: str) -> list[str] | None:
    """Return the words of the command that a refusal prints, after "calibrant"; None without one.

    What makes a file for it, "cp scores.out scores.out.txt &&", is run.
    """
    found = re.search(
        r"run: (?:((?:cp|seq|iconv|cat|cut|sed|printf|python) .*?) && )?calibrant (.*)", " ".join(err.split())
    )
    if found is None:
        return None
    if found[1]:
        own = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # this environment's python
        if subprocess.run(found[1], shell=True, check=False, env=os.environ | {"PATH": own}).returncode:
            return None
    return shlex.split(found[2])


def _without_metrics(words: list[str]) -> list[str]:
    """Return the words without the options that ``measured`` adds."""
    kept = list(words)
    for own in (
        ["--metric", "Accuracy"],
        ["--metric", "Brier"],
        ["--metric", "ECE:bins=1"],
        ["--draws", "0"],
        ["--json"],
    ):
        at = next((at for at in range(len(kept)) if kept[at : at + len(own)] == own), len(kept))
        del kept[at : at + len(own)]
    return kept


def outcome(case: Case, truth: Truth) -> tuple[str, str, list[str]]:
    """Return the outcome of a case whose files lie in this folder, what was said, and the words that read it."""
    expected = np.array(figures(truth))
    words, steps, err = case.words.split(), 0, ""
    while steps < 3:  # a command may print the next one
        found, err = measured(words, pairs=truth.probs.ndim == 1)
        if found is not None:
            right = bool(np.allclose(found, expected, atol=2e-4))
            return ("wrong numbers" if not right else "at once" if not steps else "printed command"), err, words
        following = printed_words(err)
        if following is None:
            return "refused", err, words
        if following[0] == "ingest":
            if "&&" in following:
                following, then = following[: following.index("&&")], following[following.index("&&") + 2 :]
            else:
                then = ["evaluate", following[2]]
            code, _, err = run(following)
            if code:
                return "refused", err, words
            following = then
        words = _without_metrics(following[1:])
        steps += 1
    return "refused", err, words


def read(folder: Path, only: str, verbose: bool) -> list[dict[str, Any]]:
    """Return and print the outcome of every case that was made, or those of one set ``only``."""
    records = []
    home = os.getcwd()
    for name, corpus in SETS.items():
        for at, case in enumerate(corpus if only in ("", name) else []):
            place = folder / name.replace(" ", "-") / f"{at:02d}"
            if not (place / "truth.npz").exists():
                continue
            with np.load(place / "truth.npz") as stored:
                truth = Truth(stored["probs"], stored["labels"])
            os.chdir(place)
            try:
                what, said, _ = outcome(case, truth)
            finally:
                os.chdir(home)
            records.append({"set": name, "case": case.name, "says": case.says, "outcome": what})
            bad = what in ("refused", "wrong numbers")
            print(f"{name} {at:2d} {'says ' if case.says else 'unsaid'} {what:16} {case.name}")
            if bad or verbose:
                print(f"        {' '.join(said.split())[:400]}")
    for name in SETS:
        for says in (True, False):
            counts = Counter(one["outcome"] for one in records if one["set"] == name and one["says"] is says)
            print(f"{name}, {'says' if says else 'unsaid'}: {dict(counts)}")
    return records


def main() -> None:
    """Make or read the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "read"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", choices=list(SETS), help="read one set")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path, help="where to keep the outcomes")
    options = parser.parse_args()
    if options.what == "make":
        make(options.folder)
        return
    records = read(options.folder.resolve(), options.only, options.verbose)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
