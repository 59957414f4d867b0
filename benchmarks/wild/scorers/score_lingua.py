"""Write lingua's probabilities of every text: runs where lingua-language-detector is installed.

python score_lingua.py TEXTS.jsonl OUT.npz
"""

import json
import sys

import numpy as np
from lingua import LanguageDetectorBuilder


def texts_of(path: str) -> list[str]:
    """Return the texts of a JSON-lines file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def main() -> None:
    texts = texts_of(sys.argv[1])
    detector = LanguageDetectorBuilder.from_all_languages().build()
    rows = [
        {one.language.iso_code_639_1.name.lower(): one.value for one in values}
        for values in detector.compute_language_confidence_values_in_parallel(texts)
    ]
    names = sorted(rows[0])
    np.savez(sys.argv[2], probs=np.array([[row[name] for name in names] for row in rows]), names=np.array(names))


main()
