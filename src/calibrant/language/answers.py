"""Confidences of free answers: from the log-probabilities of their tokens, or as the model states them in words."""

import math
import re
from typing import Annotated, Any, Literal

import torch

from calibrant._core.check import refuse
from calibrant._core.constraints import Integer, Text, checked
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, Remedy
from calibrant.language.log import Answers, Response, features_of, groups_of, outcomes

_CERTAIN = 1e-9  # log-probabilities closer to 0 are rounding errors: servers send about seven digits


@checked
def sequences(log: Answers, *, labels: Any = None, score: Literal["mean", "sum"] = "mean") -> Predictions:
    """Return predictions of two classes, incorrect (0) and correct (1), from the log-probability of each answer.

    The probability of class 1 is exp of the mean, or of the sum, of the log-probabilities of the answer's tokens. Neither is
    calibrated: fit a calibrator on labelled answers. Features: ``log_prob_mean``, ``log_prob_sum``, ``length`` (tokens), and
    those of the log (model, task). ``one_vs_rest(1)`` returns pairs (probability of being correct, correct) for metrics,
    intervals and ``operate.abstain``.

    Args:
        log: From a reader of this package, with log-probabilities.
        labels: Whether each answer is correct: a dict id → 1 or 0 (``read_labels``), or one per answer; None takes the log's
            scores; if it has none, the predictions have no labels.
        score: "mean" or "sum".

    Raises:
        InputError: If an answer, which is named, has no log-probabilities or no label.

    Examples:
        >>> from calibrant.language import Log, Response, Token
        >>> answer = Response("q1", "Paris", (Token("Par", -0.1, {}), Token("is", -0.3, {})))
        >>> rows = sequences(Log((answer,)), labels=[1])
        >>> rows.one_vs_rest(1).p
        tensor([0.8187], dtype=torch.float64)
        >>> rows.features["length"]
        tensor([2])

    References:
        Malinin & Gales 2021, Uncertainty Estimation in Autoregressive Structured Prediction, §3 (length-normalised
        log-probability); Murray & Chiang 2018 (length bias of sums).
    """
    sums = torch.tensor([_log_prob(one, log.source) for one in log], dtype=torch.float64)
    lengths = torch.tensor([len(one.tokens) for one in log])
    means = sums / lengths
    chosen = (means if score == "mean" else sums).clamp_max(-_CERTAIN)
    # log p − log(1 − p), by expm1, since p of a sure answer is 1 but for its last digits
    log_odds = chosen - torch.log(-torch.expm1(chosen))
    beside: dict[str, Any] = {**features_of(log), "log_prob_mean": means, "log_prob_sum": sums, "length": lengths}
    return Predictions.from_binary_logits(log_odds, outcomes(log, labels), groups=groups_of(log), features=beside)


def _log_prob(one: Response, source: str) -> float:
    if one.options:
        raise InputError(f"a free answer in {one.id!r}", "scored options", "use choices(log)", place=source)
    if not one.tokens:
        remedy = (
            "ask the server for logprobs, or for a stated confidence, which verbalized reads (generation "
            "logs of lm-evaluation-harness have no other score)"
        )
        raise InputError(f"log-probabilities of the answer {one.id!r}", "none", remedy, place=source)
    if math.isinf(one.log_prob):
        got, remedy = "−9999, which servers write where they have none", "ask again, or select the other answers"
        raise InputError(f"a log-probability for every token of {one.id!r}", got, remedy, place=source)
    return one.log_prob


_ROUNDING = 0.005  # models state whole percents, so a stated 100 % means 99.5 % or more
_NUMBER = r"(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?:(?P<percent>%|percent)|(?:/|out of)\s*(?P<whole>\d+))?"
_ALONE = re.compile(_NUMBER + r"\.?", re.IGNORECASE)
_NAMED = re.compile(r"\bconfidence(?:\s+(?:score|level))?\s*(?::|=|is\b)", re.IGNORECASE)
_LABELLED = re.compile(
    _NAMED.pattern + r"\s*" + _NUMBER + r"(?=\.?(?:[\s;,)}\]]|$))(?!\s*(?:[-–]|to\b|or\b|%|/))", re.IGNORECASE
)
_SIGNS = re.compile(r"[*_`\"']")


Scale = Annotated[int, Integer(2)]


@checked
def parse_confidence(text: Text, *, scale: Scale | None = None) -> float:
    """Return the confidence in [0, 1] stated in a text; texts in any other form are refused.

    Accepted are "Confidence: 85 %", "confidence = 0.85", "Confidence: 8/10", "confidence is 8 out of 10", anywhere in the text
    but only once, and a text that is only a number: "85%", "0.85", "8/10". A number without a unit must lie in [0, 1] with a
    decimal point, unless ``scale`` is given. Ranges, words ("high"), "about" and two different numbers are refused.

    Args:
        text: The model's answer.
        scale: The largest possible value of whole numbers without a unit, such as 100; None refuses them.

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
        found = []  # one of them has another form
    values = {_value(one, scale, text) for one in found}
    if len(values) != 1:
        got = "two different ones" if values else repr(text[-80:])
        raise refuse(
            "one confidence such as 'Confidence: 85 %', '0.85' or '8/10'", got, "ask the model for one of these forms"
        )
    return values.pop()


def _value(found: re.Match[str], scale: int | None, text: str) -> float:
    number, whole = float(found["number"]), found["whole"]
    unit = 100.0 if found["percent"] else float(whole) if whole else None
    if unit is None:
        unit = 1.0 if "." in found["number"] and number <= 1 else float(scale) if scale is not None else 0.0
    if not unit:
        raise refuse(
            "a confidence with its unit",
            repr(text[-80:]),
            Remedy("pass scale=100 if numbers are out of 100", command="add --scale 100 if numbers are out of 100"),
        )
    if number > unit:
        raise refuse("a confidence of at most 1", f"{found[0]!r}", "check the answer")
    return number / unit


@checked
def verbalized(log: Answers, *, labels: Any = None, scale: Scale | None = None) -> Predictions:
    """Return predictions of two classes, incorrect (0) and correct (1), from the confidence that each answer states.

    The feature ``stated`` is the stated confidence. In the predictions it is clipped to [0.5 %, 99.5 %], since models state whole
    percents and infinite logits cannot be calibrated.

    Args:
        log: From a reader of this package; the confidence is read from the answer's text by ``parse_confidence``.
        labels: Whether each answer is correct: a dict id → 1 or 0 (``read_labels``), or one per answer; None takes the log's
            scores.
        scale: As in ``parse_confidence``.

    Raises:
        InputError: If the confidence of an answer, which is named, has no accepted form, or for a scale below 2.

    Examples:
        >>> from calibrant.language import Log, Response
        >>> rows = verbalized(Log((Response("q1", "Paris. Confidence: 85 %"),)), labels=[1])
        >>> rows.one_vs_rest(1).p
        tensor([0.8500], dtype=torch.float64)

    References:
        Lin et al. 2022, Teaching Models to Express Their Uncertainty in Words; Tian et al. 2023, Just Ask for Calibration.
    """
    stated = []
    for one in log:
        try:
            stated.append(parse_confidence(one.text or " ", scale=scale))
        except InputError as error:
            raise error.at(f"{log.source}, {one.id!r}") from error
    p = torch.tensor(stated, dtype=torch.float64)
    beside: dict[str, Any] = {**features_of(log), "stated": p}
    # a stated 100 % is no infinite log-odds: it was rounded
    held = p.clamp(_ROUNDING, 1 - _ROUNDING)
    return Predictions.from_binary_probs(held, outcomes(log, labels), groups=groups_of(log), features=beside)
