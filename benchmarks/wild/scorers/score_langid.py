"""Write py3langid's probabilities of every text: runs where py3langid is installed.

python score_langid.py TEXTS.jsonl OUT.npz
"""

import json
import sys

import numpy as np
from py3langid.langid import MODEL_FILE, LanguageIdentifier


def texts_of(path: str) -> list[str]:
    """Return the texts of a JSON-lines file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def main() -> None:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    rows = [dict(identifier.rank(text)) for text in texts_of(sys.argv[1])]
    names = sorted(rows[0])
    probs = np.array([[row[name] for name in names] for row in rows], dtype=np.float64)
    np.savez(sys.argv[2], probs=probs, names=np.array(names))


main()
