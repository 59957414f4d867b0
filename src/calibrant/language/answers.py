"""Confidences of free answers, from the log-probabilities of their tokens or from what the model states in words."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.data.predictions import Predictions
from calibrant.errors import InputError

_CERTAIN = 1e-9  # log-probabilities closer to 0 are rounding errors: servers send about seven digits


def sequences(
    log_probs: Any, lengths: Any, labels: Any = None, *, score: Literal["mean", "sum"] = "mean"
) -> Predictions:
    """Return predictions of two classes, incorrect (0) and correct (1), from the log-probability of each answer.

    The probability of class 1 is the exponential of the mean, or of the sum, of the log-probabilities of the answer's tokens.
    Neither is calibrated, so fit a calibrator on labelled answers; ``FeatureScaling`` can use the features
    ``log_prob_mean``, ``log_prob_sum`` and ``length``. The method ``one_vs_rest(1)`` returns pairs (probability of
    being correct, correct) for metrics, intervals and ``operate.abstain``.

    Args:
        log_probs: (N,) sums of the log-probabilities of each answer's tokens, ≤ 0, in nats.
        lengths: (N,) numbers of tokens in each answer, ≥ 1.
        labels: (N,) whether each answer is correct, or None.
        score: Whether the probability is computed from the "mean" or the "sum".

    Returns:
        N predictions of two classes.

    Raises:
        InputError: If a log-probability is not finite or above 0, or a length is below 1.

    Examples:
        >>> rows = sequences([sum([-0.1, -0.3])], [2], [1])
        >>> rows.one_vs_rest(1).p
        tensor([0.8187], dtype=torch.float64)
        >>> rows.features["length"]
        tensor([2])

    References:
        Malinin & Gales 2021, Uncertainty Estimation in Autoregressive Structured Prediction, §3 (length-normalised
        log-probability); Murray & Chiang 2018 (length bias of sums).
    """
    if score not in ("mean", "sum"):
        raise InputError(f"score must be 'mean' or 'sum', not {score!r}")
    sums, counts = torch.as_tensor(np.asarray(log_probs, dtype=np.float64)), torch.as_tensor(np.asarray(lengths))
    if sums.dim() != 1 or counts.shape != sums.shape:
        raise InputError(
            f"log_probs and lengths must hold one number per answer, not the shapes {tuple(sums.shape)} and {tuple(counts.shape)}"
        )
    if bool((wrong := ~(sums.isfinite() & (sums <= 1e-3))).any()):
        row = int(wrong.nonzero()[0])
        raise InputError(f"the log-probability of answer {row} must be finite and at most 0, not {sums[row]:g}")
    if bool((counts < 1).any()):
        raise InputError(f"answer {int((counts < 1).nonzero()[0])} has no tokens; leave it out")
    means = sums / counts
    chosen = (means if score == "mean" else sums).clamp_max(-_CERTAIN)
    # log p − log(1 − p); expm1 keeps the digits of 1 − p when p is almost 1
    log_odds = chosen - torch.log(-torch.expm1(chosen))
    features = {"log_prob_mean": means, "log_prob_sum": sums, "length": counts}
    return Predictions.from_binary_logits(log_odds, _outcomes(labels), features=features)


_ROUNDING = 0.005  # models state whole percents, so a stated 100 % means 99.5 % or more
_NUMBER = r"(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?:(?P<percent>%|percent)|(?:/|out of)\s*(?P<whole>\d+))?"
_ALONE = re.compile(_NUMBER + r"\.?", re.IGNORECASE)
_NAMED = re.compile(r"\bconfidence(?:\s+(?:score|level))?\s*(?::|=|is\b)", re.IGNORECASE)
_LABELLED = re.compile(
    _NAMED.pattern + r"\s*" + _NUMBER + r"(?=\.?(?:[\s;,)}\]]|$))(?!\s*(?:[-–]|to\b|or\b|%|/))", re.IGNORECASE
)
_SIGNS = re.compile(r"[*_`\"']")


def parse_confidence(text: str, *, scale: int | None = None) -> float:
    """Return the confidence in [0, 1] that a text states; texts in unclear forms are refused.

    The text may contain a statement such as "Confidence: 85 %", "confidence = 0.85", "Confidence: 8/10" or "confidence
    is 8 out of 10" in any place, or consist only of a number: "85%", "0.85", "8/10". A number without a unit must have
    a decimal point and lie in [0, 1], unless ``scale`` is given. Ranges, words ("high"), "about" and two different
    numbers are refused.

    Args:
        text: The model's answer.
        scale: The largest possible value of whole numbers without a unit, ≥ 2, such as 100; None refuses such numbers.

    Returns:
        The confidence in [0, 1].

    Raises:
        InputError: If the text does not state one confidence in one of these forms.

    Examples:
        >>> [parse_confidence(text) for text in ("Paris. Confidence: 85 %", "0.85", "**Confidence:** 8/10")]
        [0.85, 0.85, 0.8]
    """
    plain = _SIGNS.sub("", text).strip()
    alone = _ALONE.fullmatch(plain)
    found = [alone] if alone else list(_LABELLED.finditer(plain))
    if len(_NAMED.findall(plain)) > len(found):
        found = []  # a mention in another form makes the text ambiguous
    values = {_value(one, scale, text) for one in found}
    if len(values) != 1:
        got = "states two different confidences" if values else "states no confidence in an accepted form"
        raise InputError(f"{text[-80:]!r} {got}; ask the model for 'Confidence: 85 %', '0.85' or '8/10'")
    return values.pop()


def _value(found: re.Match[str], scale: int | None, text: str) -> float:
    number, whole = float(found["number"]), found["whole"]
    unit = 100.0 if found["percent"] else float(whole) if whole else None
    if unit is None:
        unit = 1.0 if "." in found["number"] and number <= 1 else float(scale or 0)
    if not unit:
        raise InputError(f"{text[-80:]!r} states a number without a unit; pass scale=100 if numbers are out of 100")
    if number > unit:
        raise InputError(f"{found[0]!r} states a confidence above 1")
    return number / unit


def verbalized(texts: Sequence[str], labels: Any = None, *, scale: int | None = None) -> Predictions:
    """Return predictions of two classes, incorrect (0) and correct (1), from the confidence that each answer states.

    The feature ``stated`` is the confidence as stated. The predictions clip it to [0.5 %, 99.5 %], because models state whole
    percents, and a probability of 0 or 1 would have an infinite logit, which cannot be calibrated.

    Args:
        texts: (N,) answers in the forms that ``parse_confidence`` accepts.
        labels: (N,) whether each answer is correct, or None.
        scale: As in ``parse_confidence``.

    Returns:
        N predictions of two classes.

    Raises:
        InputError: If an answer states no confidence in an accepted form; the error names the answer.

    Examples:
        >>> rows = verbalized(["Paris. Confidence: 85 %"], [1])
        >>> rows.one_vs_rest(1).p
        tensor([0.8500], dtype=torch.float64)

    References:
        Lin et al. 2022, Teaching Models to Express Their Uncertainty in Words; Tian et al. 2023, Just Ask for Calibration.
    """
    stated = []
    for row, text in enumerate(texts):
        try:
            stated.append(parse_confidence(text, scale=scale))
        except InputError as error:
            raise InputError(f"answer {row}: {error}") from None
    p = torch.tensor(stated, dtype=torch.float64)
    # a stated 100 % was rounded, so it does not stand for infinite log-odds
    return Predictions.from_binary_probs(p.clamp(_ROUNDING, 1 - _ROUNDING), _outcomes(labels), features={"stated": p})


def _outcomes(labels: Any) -> Tensor | None:
    """Return labels that are 0 and 1, or false and true, as integers."""
    return None if labels is None else torch.as_tensor(np.asarray(labels)).long()
