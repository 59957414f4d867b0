"""How often the scores and rankings of ``language.judge_audit`` cover, and how wide they are beside those of the labels alone.

    python -m benchmarks.judges [--replicates 200] [--data DIR] [--people DIR] [--record benchmarks/records/judges.json]

Judges are simulated, so that the truth, the mean of people over all rows, is known: they favour long answers, one system, or the
answer shown first. With --data, judges are real: one vision-language model's probability of another's answer to a question of MMBench or
OOD-CV judges it, and the key, which people made, is the label; each model judges three others, on questions that all answered. With
--people, language models judged what people labelled too: DIR holds the tables of ``PEOPLE`` as CSV with the columns judge and person, in
[0, 1], and system, or first and second; all rows are labelled, and some of the labels are drawn. Each cell has the coverage of the
scores, of all differences of a ranking together, and the median ratio of half-widths. Of some cells a third of the labels is drawn
evenly and the others by ``language.judge_rows``; they are compared with as many even labels alone. One thread.
"""

import argparse
import csv
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.records import versions
from calibrant.language import judge_audit, judge_rows

RECORD = Path("benchmarks/records/judges.json")
ROWS, LABELS, FIRST, SEED = 1000, 200, 60, 20261123
ACCURACY = np.array([0.8, 0.72, 0.6])


def answers(
    kind: str, systems: int, rng: np.random.Generator, *, labels: int = LABELS
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the arguments of an audit of answers that are right or wrong, and each system's truth."""
    of = np.repeat(np.arange(systems), ROWS)
    chance = ACCURACY[of] if kind != "rare errors" else np.array([0.985, 0.97, 0.95])[of]
    truth, length = (rng.random(len(of)) < chance).astype(float), rng.random(len(of))
    agree = np.full(len(of), 0.93)
    if kind == "biased":  # towards long answers and the third system, where people say no
        agree -= (truth == 0) * (0.25 * (of == 2) + 0.15 * (length > 0.6))
    if kind == "uneven":  # nearly always right on one system, often wrong on another
        agree = np.array([0.99, 0.95, 0.82])[of]
    judge = np.where(rng.random(len(of)) < agree, truth, 1 - truth)
    if kind == "log-probabilities":
        judge = 1 / (1 + np.exp(-2 * (1.7 * (2 * truth - 1) + rng.normal(size=len(of)) * 1.2)))
    drawn = rng.choice(len(of), labels, replace=False)
    human = np.full(len(of), -1.0)
    human[drawn] = truth[drawn]
    means = {str(one): float(truth[of == one].mean()) for one in range(systems)}
    return {"judge": judge, "human": human, "systems": of, "by": {"length": length}}, means


def comparisons(rng: np.random.Generator, *, labels: int = LABELS) -> tuple[dict[str, Any], dict[str, float]]:
    """Return those of comparisons in both orders, in a tenth of which the judge names what it sees first."""
    first = rng.integers(0, 3, ROWS)
    second = (first + rng.integers(1, 3, ROWS)) % 3
    wins = (rng.random(ROWS) < 1 / (1 + np.exp(2 * (ACCURACY[second] - ACCURACY[first]) * 5))).astype(float)
    said = np.where(rng.random(ROWS) < 0.93, wins, 1 - wins)
    judge, swapped = (np.where(rng.random(ROWS) < 0.1, favoured, said) for favoured in (1, 0))
    human = np.where(rng.permutation(ROWS) < labels, wins, -1)
    means = {str(one): float(np.r_[wins[first == one], 1 - wins[second == one]].mean()) for one in range(3)}
    return {"judge": judge, "human": human, "systems": (first, second), "swapped": swapped}, means


def models(directory: Path, prefix: str, judge: int) -> tuple[dict[str, Any], Any]:
    """Return one model's scores of three others' answers, and the truth of each answer; labels are to be drawn."""
    paths = sorted(directory.glob(f"{prefix}-*.npz"))
    held = [np.load(path) for path in (paths[(judge + step) % len(paths)] for step in (0, 1, 5, 9))]
    logits = held[0]["test_logits"].astype(float)
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    said = [one["test_logits"].argmax(1) for one in held[1:]]
    row = np.arange(len(logits))
    scores = np.concatenate([probs[row, one] for one in said])
    truth = np.concatenate([one == held[0]["test_labels"] for one in said]).astype(float)
    return {"judge": scores, "systems": np.repeat(np.arange(3), len(row)), "questions": np.tile(row, 3)}, truth


# Table → the labels that are drawn of it, and the repository, commit and files from which it is made.
_ALT = "nitaytech/AltTest cc1d1f40 data/"
_DL = "llm4eval/LLMJudge 81159c68 data/llmjudge_test_qrel_idx.txt, llm4eval/LLMJudge-benchmark 3ac84d02 data/h2oloo-zeroshot1.txt"
PEOPLE = {
    # relevance from 0 to 3, divided by 3, of passages to two queries of TREC DL 2023: the assessor, and GPT-4o
    "passages": ((60, 100), f"{_DL}, q22 and q46"),
    # whether a review praises food, service, noise or ambiance: one annotator of CEBaB, and Gemini Flash
    "reviews": ((60, 100), f"{_ALT}cebab_aspects, w1 and gemini_flash"),
    # which of two answers of MT-Bench is better: the mean of two or three people, and Gemini
    "answers-gemini-pro": ((60, 80), f"{_ALT}mtbench, gemini_pro"),
    "answers-gemini-flash": ((60, 80), f"{_ALT}mtbench, gemini_flash"),
}

CELLS = [("plain", 1), ("plain", 3), ("biased", 3), ("uneven", 3), ("rare errors", 3),
         ("rare errors", 1), ("log-probabilities", 1), ("log-probabilities", 3),
         ("comparisons", 3)]  # fmt: skip


# of the simulated kinds, those whose labels are drawn in two batches as well
CHOSEN = [("plain", 1), ("plain", 3), ("biased", 3), ("rare errors", 1), ("rare errors", 3), ("log-probabilities", 3),
          ("comparisons", 3)]  # fmt: skip


def cell(kind: str, systems: int, replicates: int, *, chosen: bool = False) -> dict[str, Any]:
    """Return the coverage and the widths of one kind of simulated judge."""

    def drawn(seed: int) -> tuple[Any, ...]:
        rng = np.random.default_rng([SEED, seed])
        rows = ROWS if kind == "comparisons" else ROWS * systems
        made = comparisons if kind == "comparisons" else partial(answers, kind, systems)
        given, means = made(rng, labels=rows if chosen else LABELS)
        return (batches_of(given, seed), means, evenly(given, seed)) if chosen else (given, means)

    about = {"judge": kind + ", chosen" * chosen, "systems": systems, "labels": LABELS, "replicates": replicates}
    return about | told(map(drawn, range(replicates)))


def batches_of(given: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the arguments with labels of two batches, of those of all rows."""
    told_of = {name: given[name] for name in ("judge", "systems", "swapped") if name in given}
    human, inclusion = np.full(len(given["human"]), -1.0), None
    for count in (FIRST, LABELS - FIRST):
        known = None if inclusion is None else human
        rows, inclusion = judge_rows(**told_of, count=count, human=known, inclusion=inclusion, seed=seed)
        human[rows] = given["human"][rows]
    return {**given, "human": human, "inclusion": inclusion}


def evenly(given: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the arguments with as many labels of even rows, of those of all rows."""
    picked = np.random.default_rng([SEED, seed, 1]).permutation(len(given["human"])) < LABELS
    return {**given, "human": np.where(picked, given["human"], -1)}


def real(directory: Path, prefix: str, judge: int, replicates: int) -> dict[str, Any]:
    """Return the coverage and the widths of one real judge."""
    given, truth = models(directory, prefix, judge)
    means = {str(one): float(truth[given["systems"] == one].mean()) for one in range(3)}

    def drawn(seed: int) -> tuple[dict[str, Any], dict[str, float]]:
        labelled = np.random.default_rng([SEED, seed, judge]).permutation(len(truth)) < LABELS
        return {**given, "human": np.where(labelled, truth, -1)}, means

    name = sorted(directory.glob(f"{prefix}-*.npz"))[judge].stem
    return {"judge": name, "systems": 3, "labels": LABELS, "replicates": replicates} | told(
        map(drawn, range(replicates))
    )


def people(table: Path, labels: int, replicates: int) -> dict[str, Any]:
    """Return the coverage and the widths of a judge of what people labelled."""
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    column = {name: np.array([line[name] for line in lines]) for name in lines[0]}
    person = column["person"].astype(float)
    compared = "first" in column
    sides = [column["first"], column["second"]] if compared else [column["system"]]
    of, won = np.concatenate(sides), np.r_[person, 1 - person] if compared else person
    means = {str(one): float(won[of == one].mean()) for one in np.unique(of)}
    given = {"judge": column["judge"].astype(float), "systems": tuple(sides) if compared else sides[0]}

    def drawn(seed: int) -> tuple[dict[str, Any], dict[str, float]]:
        picked = np.random.default_rng([SEED, seed]).permutation(len(person)) < labels
        return {**given, "human": np.where(picked, person, -1)}, means

    found = told(map(drawn, range(replicates)))
    about = {"judge": table.stem, "source": PEOPLE[table.stem][1], "rows": len(person), "systems": len(means)}
    return {**about, "labels": labels, "replicates": replicates, **found}


def told(rounds: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the coverage of scores and rankings, and the median ratio of half-widths beside its limit.

    A round is the arguments of an audit, the truth, and those of another audit if that one's labels alone, and its limit, are compared.
    """
    covered, together, ratios, agreement, limits = [], [], [], [], []
    for given, truth, *others in rounds:
        found = judge_audit(**given)
        beside = judge_audit(**others[0]) if others else found
        covered += [one.low <= truth[name] <= one.high for name, one in found.scores.items()]
        ratios += [(one.high - one.low) / (beside.human[name].high - beside.human[name].low)
                   for name, one in found.scores.items()]  # fmt: skip
        gaps = found.ranking.differences
        together.append(all(one.low <= truth[a] - truth[b] <= one.high for (a, b), one in gaps.items()))
        agreement.append(found.calibration.agreement.estimate)
        limits.append(beside.calibration.gain)
    return {
        "coverage": float(np.mean(covered)), "ranking": float(np.mean(together)) if gaps else None,
        "width_ratio": float(np.median(ratios)), "limit": float(np.median(limits)), "agreement": float(np.mean(agreement)),
    }  # fmt: skip


def main() -> None:
    """Run all cells and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--data", type=Path, help="folder of mmbench-*.npz and oodcv-*.npz")
    parser.add_argument("--people", type=Path, help="folder of CSV tables called as in PEOPLE; 300 draws of each")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"versions": versions(), "cells": []}
    tasks = [partial(cell, kind, systems, options.replicates) for kind, systems in CELLS]
    tasks += [partial(cell, kind, systems, options.replicates, chosen=True) for kind, systems in CHOSEN]
    for prefix in ("mmbench", "oodcv") if options.data else ():
        judges = range(len(list(options.data.glob(f"{prefix}-*.npz"))))
        tasks += [partial(real, options.data, prefix, judge, options.replicates // 4) for judge in judges]
    if options.people:
        tasks += [partial(people, options.people / f"{name}.csv", labels, 300)
                  for name, (numbers, _) in PEOPLE.items() for labels in numbers]  # fmt: skip
    for task in tasks:
        record["cells"].append(task())
        options.record.write_text(json.dumps(record, indent=1) + "\n")
        print(record["cells"][-1], flush=True)


if __name__ == "__main__":
    main()
