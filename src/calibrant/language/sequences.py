"""Free answers: the probability of being correct, from the log-probabilities of their tokens."""

import math
from typing import Any, Literal

import torch

from calibrant._core.constraints import checked
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
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
