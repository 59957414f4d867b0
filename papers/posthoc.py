"""Evaluates the calibrators that the papers compare on every set of saved logits, and writes the record of the post-hoc claims.

    python -m papers.posthoc papers/records/posthoc.json        # keeps the measures that are already in the record

Each calibrator is fitted on the validation split of a set and evaluated on its test split. The record contains no logits;
``papers.index`` computes the verdicts from the record, without the data. Sets from the same data set share their test rows or
questions and form a cluster, which is named in the record.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import calibrant
from calibrant import Predictions
from calibrant.study.measures import Measured, Run
from papers.index import claims, places


def folder() -> Path:
    """Return the folder of logit sets, ``$CALIBRANT_DATA/logits``, or ``../shared/data/logits`` if this variable is not set."""
    root = os.environ.get("CALIBRANT_DATA")
    return (Path(root) if root else Path(__file__).parent.parent.parent / "shared" / "data") / "logits"


def load_set(name: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the splits of a set, {"val": (logits, labels), "test": …}."""
    with np.load(folder() / f"{name}.npz") as file:
        return {
            split: (torch.from_numpy(file[f"{split}_logits"]), torch.from_numpy(file[f"{split}_labels"]))
            for split in ("val", "test")
        }


def cluster(name: str) -> str:
    """Return the data set that a set of logits belongs to, such as ``"mmbench"`` for ``"mmbench-qwen-vl"``."""
    return name.partition("-")[0]


def figures(name: str, known: dict[str, Any]) -> dict[str, Any]:
    """Return the measures of a set that the claims need; those in ``known`` are not computed again."""
    validation, test = (Predictions.from_logits(*load_set(name)[split]) for split in ("val", "test"))
    fits = Measured([Run(validation, test)])
    found: dict[str, Any] = {"set": name, "cluster": cluster(name), "n": len(test), "classes": test.logits.shape[1]}
    names = {place.name for place in places() if place.exact}
    measures = {measure for claim in claims() if names & set(claim.data) for measure in claim.measures}
    return {**found, **{m: known[m] if m in known else round(fits.value(m), 8) for m in sorted({"error", *measures})}}


def main(path: Path) -> None:
    """Evaluate one set after the other, and write the record after each."""
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "study": "posthoc",
        "sets": [],
        "versions": {"calibrant": calibrant.__version__, "torch": torch.__version__},
    }
    if path.exists():
        record["sets"] = json.loads(path.read_text(encoding="utf-8"))["sets"]
    known = {row["set"]: row for row in record["sets"]}
    for name in sorted(file.stem for file in folder().glob("*.npz")):
        known[name] = figures(name, known.get(name, {}))
        record["sets"] = [known[one] for one in sorted(known)]
        rows = ",\n".join("  " + json.dumps(row) for row in record["sets"])
        head = json.dumps({key: record[key] for key in ("study", "versions")})
        path.write_text(f'{head[:-1]}, "sets": [\n{rows}\n]}}\n', encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
