"""How often the scores and rankings of ``language.judge_audit`` cover, and how wide they are beside those of the labels alone.

    python -m benchmarks.judges [--replicates 200] [--record benchmarks/records/judges.json]

Judges are simulated, so that the truth, the mean of people over all rows, is known: they favour long answers, one system, or the
answer shown first. Each cell has the coverage of the scores, of all differences of a ranking together, and the median ratio of
half-widths. One thread.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.records import versions
from calibrant.language import judge_audit

RECORD = Path("benchmarks/records/judges.json")
ROWS, LABELS, SEED = 1000, 200, 20261123
ACCURACY = np.array([0.8, 0.72, 0.6])


def answers(kind: str, systems: int, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the arguments of an audit of answers that are right or wrong, and each system's truth."""
    of = np.repeat(np.arange(systems), ROWS)
    chance = ACCURACY[of] if kind != "rare errors" else np.array([0.985, 0.97, 0.95])[of]
    truth, length = (rng.random(len(of)) < chance).astype(float), rng.random(len(of))
    agree = np.full(len(of), 0.93)
    if kind == "biased":  # towards long answers and the third system, where people say no
        agree -= (truth == 0) * (0.25 * (of == 2) + 0.15 * (length > 0.6))
    judge = np.where(rng.random(len(of)) < agree, truth, 1 - truth)
    if kind == "log-probabilities":
        judge = 1 / (1 + np.exp(-2 * (1.7 * (2 * truth - 1) + rng.normal(size=len(of)) * 1.2)))
    drawn = rng.choice(len(of), LABELS, replace=False)
    human = np.full(len(of), -1.0)
    human[drawn] = truth[drawn]
    means = {str(one): float(truth[of == one].mean()) for one in range(systems)}
    return {"judge": judge, "human": human, "systems": of, "by": {"length": length}}, means


def comparisons(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, float]]:
    """Return those of comparisons in both orders, in a tenth of which the judge names what it sees first."""
    first = rng.integers(0, 3, ROWS)
    second = (first + rng.integers(1, 3, ROWS)) % 3
    wins = (rng.random(ROWS) < 1 / (1 + np.exp(2 * (ACCURACY[second] - ACCURACY[first]) * 5))).astype(float)
    said = np.where(rng.random(ROWS) < 0.93, wins, 1 - wins)
    judge, swapped = (np.where(rng.random(ROWS) < 0.1, favoured, said) for favoured in (1, 0))
    human = np.where(rng.permutation(ROWS) < LABELS, wins, -1)
    means = {str(one): float(np.r_[wins[first == one], 1 - wins[second == one]].mean()) for one in range(3)}
    return {"judge": judge, "human": human, "systems": (first, second), "swapped": swapped}, means


CELLS = [("plain", 1), ("plain", 3), ("biased", 3), ("rare errors", 1), ("log-probabilities", 1), ("log-probabilities", 3),
         ("comparisons", 3)]  # fmt: skip


def cell(kind: str, systems: int, replicates: int) -> dict[str, Any]:
    """Return the coverage and the widths of one kind of judge."""
    covered, together, ratios, agreement = [], [], [], []
    for seed in range(replicates):
        rng = np.random.default_rng([SEED, seed])
        given, truth = comparisons(rng) if kind == "comparisons" else answers(kind, systems, rng)
        found = judge_audit(**given)
        covered += [one.low <= truth[name] <= one.high for name, one in found.scores.items()]
        ratios += [(one.high - one.low) / (found.human[name].high - found.human[name].low)
                   for name, one in found.scores.items()]  # fmt: skip
        gaps = found.ranking.differences
        together.append(all(one.low <= truth[a] - truth[b] <= one.high for (a, b), one in gaps.items()))
        agreement.append(found.calibration.agreement.estimate)
    return {
        "judge": kind, "systems": systems, "labels": LABELS, "replicates": replicates, "coverage": float(np.mean(covered)),
        "ranking": float(np.mean(together)) if systems > 1 else None, "width_ratio": float(np.median(ratios)),
        "agreement": float(np.mean(agreement)),
    }  # fmt: skip


def main() -> None:
    """Run all cells and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"versions": versions(), "cells": []}
    for kind, systems in CELLS:
        record["cells"].append(cell(kind, systems, options.replicates))
        options.record.write_text(json.dumps(record, indent=1) + "\n")
        print(record["cells"][-1], flush=True)


if __name__ == "__main__":
    main()
