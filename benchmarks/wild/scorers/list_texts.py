"""Write Django's translated messages, with their languages, as JSON lines: runs where Django and polib are installed.

    python list_texts.py OUT.jsonl MOST_A_LANGUAGE

``message`` is the hash of the English message, so that all its translations can be kept on one side of a split. Regional
variants are their language (pt_BR is pt). Markup and placeholders are taken out, and texts under 20 letters left out.
"""

import hashlib
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import django
import polib

_NOT_TEXT = re.compile(r"%\(\w+\)\w|%\w|\{\w*\}|<[^>]+>|https?://\S+")


def main() -> None:
    out, most = sys.argv[1], int(sys.argv[2])
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(Path(django.__file__).parent.glob("**/locale/*/LC_MESSAGES/django.po")):
        language = path.parts[-3].split("_")[0].lower()
        for entry in polib.pofile(str(path)):
            text = " ".join(_NOT_TEXT.sub(" ", entry.msgstr).split())
            if entry.obsolete or entry.fuzzy or entry.msgstr == entry.msgid or sum(c.isalpha() for c in text) < 20:
                continue
            found[language].setdefault(text, hashlib.sha256(entry.msgid.encode()).hexdigest())
    with open(out, "w", encoding="utf-8") as file:
        for language, texts in sorted(found.items()):
            kept = sorted(texts.items(), key=lambda item: hashlib.sha256((language + item[0]).encode()).hexdigest())
            for text, message in kept[:most]:
                file.write(json.dumps({"label": language, "message": message, "text": text}) + "\n")


main()
