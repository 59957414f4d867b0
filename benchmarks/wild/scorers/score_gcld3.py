"""Write CLD3's language and its probability for every text: runs where cld3-py is installed.

python score_gcld3.py TEXTS.jsonl OUT.npz
"""

import json
import sys

import gcld3
import numpy as np


def texts_of(path: str) -> list[str]:
    """Return the texts of a JSON-lines file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def main() -> None:
    identifier = gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=10_000)
    found = [identifier.FindLanguage(text) for text in texts_of(sys.argv[1])]
    conf = np.array([one.probability for one in found])
    np.savez(sys.argv[2], conf=conf, name=np.array([one.language for one in found]))


main()
