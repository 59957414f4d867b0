"""Confidences that a model states in words: a strict parser, and predictions from them."""

import re
from typing import Annotated, Any

import torch

from calibrant._core.check import refuse
from calibrant._core.constraints import Integer, Text, checked
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, Remedy
from calibrant.language.log import Answers, features_of, groups_of, outcomes

_ROUNDING = 0.005  # models state whole percents, so a stated 100 % means 99.5 % or more
_NUMBER = r"(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?:(?P<percent>%|percent)|(?:/|out of)\s*(?P<whole>\d+))?"
_ALONE = re.compile(_NUMBER + r"\.?", re.IGNORECASE)
_LABELLED = re.compile(
    r"\bconfidence(?:\s+(?:score|level))?\s*(?::|=|is\b)\s*"
    + _NUMBER
    + r"(?=\.?(?:[\s;,)}\]]|$))(?!\s*(?:[-–]|to\b|or\b|%|/))",
    re.IGNORECASE,
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
    if len(re.findall(r"\bconfidence(?:\s+(?:score|level))?\s*(?::|=|is\b)", plain, re.IGNORECASE)) > len(found):
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
