"""Reads multiple-choice samples that lm-evaluation-harness writes with ``--log_samples``."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from calibrant.data.predictions import Predictions
from calibrant.errors import FileFormatError, InputError

_UNLIKELY = -9999.0  # the value that servers write for a missing log-probability


def read_lm_eval(
    path: str | os.PathLike[str], *, normalize: Literal["none", "characters", "bytes"] = "none"
) -> Predictions:
    """Return predictions over the answer options from a ``samples_TASK_DATE.jsonl`` of lm-evaluation-harness.

    The logits are the options' log-likelihoods; questions with fewer options are padded with −inf. The label is ``target``, an
    option's index or text. The feature ``id`` is ``doc_id``.

    Args:
        path: A file with one JSON object per line, from a multiple-choice task.
        normalize: Divide each log-likelihood by the option's number of "characters" or "bytes", as the harness does for
            acc_norm and acc_bytes; "none" does not divide.

    Returns:
        One prediction per question.

    Raises:
        FileFormatError: If a line is not such a sample; the error names the line.
        InputError: If ``normalize`` is not one of these words.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> asked = {
        ...     "gen_args_0": {"arg_0": "2 + 2 =", "arg_1": " 4"},
        ...     "gen_args_1": {"arg_0": "2 + 2 =", "arg_1": " 5"},
        ... }
        >>> scored = [["-0.3", "True"], ["-2.5", "False"]]
        >>> sample = {"doc_id": 0, "target": "0", "arguments": asked, "filtered_resps": scored, "acc": 1.0}
        >>> _ = Path("samples_sums_2026-01-01T00-00-00.0.jsonl").write_text(json.dumps(sample))
        >>> read_lm_eval("samples_sums_2026-01-01T00-00-00.0.jsonl").logits
        tensor([[-0.3000, -2.5000]], dtype=torch.float64)

    References:
        lm-evaluation-harness, ``--log_samples``; acc_norm and acc_bytes.
    """
    if normalize not in ("none", "characters", "bytes"):
        raise InputError(f"normalize must be 'none', 'characters' or 'bytes', not {normalize!r}")
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{file} cannot be read as UTF-8 text ({error})") from error
    samples = [_sample(line, f"{file}, line {n}") for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not samples:
        raise FileFormatError(f"{file} holds no samples; run lm_eval with --log_samples")
    ids = [str(line["doc_id"]) for line, _, _ in samples]
    if len(set(ids)) < len(ids):
        raise FileFormatError(f"{file} holds a doc_id twice; keep only the lines of one filter")
    as_index = _targets_are_indices(samples)
    logits = torch.full((len(samples), max(len(texts) for _, texts, _ in samples)), -math.inf, dtype=torch.float64)
    labels = []
    for row, (line, texts, values) in enumerate(samples):
        label = _target_number(line, texts, as_index=as_index)
        if label is None:
            target = f"the target of doc_id {line['doc_id']}, {line['target']!r},"
            raise FileFormatError(f"{file}: {target} is not one of its options")
        labels.append(label)
        # the space between question and option does not count
        own = [text.removeprefix(" ") for text in texts]
        sizes = [1 if normalize == "none" else len(one if normalize == "characters" else one.encode()) for one in own]
        logits[row, : len(values)] = torch.tensor(values, dtype=torch.float64) / torch.tensor(sizes).clamp_min(1)
    return Predictions.from_logits(logits, labels, unchecked_kind=True, features={"id": ids})


Sample = tuple[Mapping[str, Any], list[str], list[float]]


def _sample(text: str, place: str) -> Sample:
    """Return a line's object, its options' texts and their log-likelihoods."""
    try:
        line = json.loads(text)
        arguments = line["arguments"]  # {"gen_args_0": {"arg_0": question, "arg_1": " answer"}, …}, or lists of both
        requests = [list(one.values()) for one in arguments.values()] if isinstance(arguments, Mapping) else arguments
        options = [str(one[1]) for one in requests]
        # a log-likelihood and whether it is that of the greedy answer, ["-1.2", "False"], or both in a list
        answers = [one[0] if len(one) == 1 else one for one in line["filtered_resps"]]
        values = [float(value) for value, _ in answers]
        if not {"doc_id", "target"} <= line.keys() or not {str(greedy) for _, greedy in answers} <= {"True", "False"}:
            raise ValueError("another kind of sample")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        expected = "not a multiple-choice sample of lm-evaluation-harness (doc_id, target, arguments, filtered_resps)"
        remedy = "answers of generation tasks are for calibrant.language.verbalized"
        raise FileFormatError(f"{place}: {expected}; {remedy}") from error
    if len(values) != len(options) or len(set(options)) < max(2, len(options)):
        raise FileFormatError(f"{place}: expected one log-likelihood for each of at least two distinct options")
    if not all(-math.inf < value <= 1e-3 for value in values):
        raise FileFormatError(f"{place}: a log-likelihood must be a finite number of at most 0")
    return line, options, [-math.inf if value <= _UNLIKELY else value for value in values]


def _targets_are_indices(samples: list[Sample]) -> bool:
    """Return whether ambiguous targets, which could be an option's index or its text, are indices.

    The target 1 is ambiguous if the options are "1" to "4". The log's own ``acc`` tells whether the option of the largest
    likelihood is the target, and only one of the two readings agrees with it.
    """
    agreement = {True: 0, False: 0}
    for line, texts, values in samples:
        readings = {as_index: _target_number(line, texts, as_index=as_index) for as_index in agreement}
        if line.get("acc") in (0, 1) and readings[True] != readings[False]:
            best = max(range(len(values)), key=values.__getitem__)
            for as_index, target in readings.items():
                agreement[as_index] += (best == target) == bool(line["acc"])
    return agreement[True] > agreement[False]


def _target_number(line: Mapping[str, Any], texts: list[str], *, as_index: bool) -> int | None:
    """Return the number of the true option, given by its text or its index; ``as_index`` prefers the index."""
    target, names = str(line["target"]).strip(), [text.strip() for text in texts]
    by_text = names.index(target) if target in names else None
    by_index = int(target) if target.isdecimal() and int(target) < len(names) else None
    first, second = (by_index, by_text) if as_index else (by_text, by_index)
    return second if first is None else first
