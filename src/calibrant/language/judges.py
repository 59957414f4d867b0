"""Language models as judges: the probability that an answer is correct, or better, from the judge's log-probabilities."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch

from calibrant._core.check import refuse
from calibrant._core.constraints import Integer, Natural, checked
from calibrant.data.predictions import Predictions
from calibrant.language.choices import Missing, check_options, choices
from calibrant.language.log import Answers, Log, need_log, outcomes

_YES, _NO = ("yes", "Yes", "YES"), ("no", "No", "NO")


@checked
def yes_no(
    log: Answers, *, labels: Any = None, yes: Any = _YES, no: Any = _NO, missing: Missing = "refuse"
) -> Predictions:
    """Return predictions of two classes, incorrect (0) and correct (1), from a judge that answers yes or no.

    The probability of class 1 is P(yes) / (P(yes) + P(no)) at the first token; the features ``other_mass`` and ``bounded`` are
    those of ``choices``.

    Args:
        log: The judge's answers, with top log-probabilities.
        labels: Whether the judged answer is correct: a dict id → 1 or 0 (``read_labels``), or one per answer; None takes the
            log's scores.
        yes: First tokens that mean yes.
        no: First tokens that mean no.
        missing: As in ``choices``; "drop" needs labels by id, or none.

    Raises:
        InputError: If an answer, which is named, has no log-probabilities or no label.

    Examples:
        >>> from calibrant.language import Log, Response, Token
        >>> top = {"Yes": -0.5, "No": -1.2}
        >>> yes_no(Log((Response("a", "Yes", (Token("Yes", -0.5, top),)),)), labels=[1]).one_vs_rest(1).p
        tensor([0.6682], dtype=torch.float64)

    References:
        Kadavath et al. 2022, Language Models (Mostly) Know What They Know, §3 (P(True)).
    """
    options = {"no": no, "yes": yes}
    truth = outcomes(log, labels)
    named = None if truth is None else [("no", "yes")[y] for y in truth.tolist()]
    return choices(_without_targets(log), options, labels=named, missing=missing)


@checked
def rating(
    log: Answers,
    *,
    labels: Any = None,
    low: Natural = 1,
    high: Annotated[int, Integer(1, 9)] = 5,
    missing: Missing = "refuse",
) -> Predictions:
    """Return predictions of two classes, incorrect (0) and correct (1), from a judge that answers with a level of a scale.

    E is the expected level under the judge's probabilities, and (E − low) / (high − low) the probability of class 1, which needs
    calibration. Features: ``rating`` (E), ``other_mass``, ``bounded``.

    Args:
        log: The judge's answers, with top log-probabilities.
        labels: As in ``yes_no``.
        low: The lowest level, a whole number.
        high: The highest level, above ``low`` and at most 9, since numbers of several digits may be several tokens.
        missing: As in ``choices``; use "bound", since very improbable levels are often not returned.

    Raises:
        InputError: If an answer, which is named, has no log-probabilities or no label.

    Examples:
        >>> from calibrant.language import Log, Response, Token
        >>> top = {"5": -0.7, "4": -1.2, "3": -2.0, "2": -4.0, "1": -5.0}
        >>> rows = rating(Log((Response("a", "5", (Token("5", -0.7, top),)),)), labels=[1])
        >>> rows.features["rating"]
        tensor([4.3177], dtype=torch.float64)

    References:
        Liu et al. 2023, G-Eval, §2 (scores weighted by their token probabilities).
    """
    Integer(low + 1, 9).check(high, "high", "rating")
    levels = torch.arange(low, high + 1, dtype=torch.float64)
    truth = outcomes(log, labels)
    names = [str(level) for level in range(low, high + 1)]
    # outcomes are encoded as the labels "lowest level" and "highest level", so that ``choices`` also drops those of dropped answers
    named = None if truth is None else [names[-1 if y else 0] for y in truth.tolist()]
    found = choices(_without_targets(log), names, labels=named, missing=missing)
    # the mean level under the judge's distribution says more than its most probable level (G-Eval: Liu et al. 2023)
    expected = found.probs @ levels
    kept = None if found.labels is None else (found.labels == high - low).long()
    p = ((expected - low) / (high - low)).clamp(0, 1)
    return Predictions.from_binary_probs(
        p, kept, groups=found.groups, features={**(found.features or {}), "rating": expected}
    )


@checked
def pairwise(
    log: Answers, swapped: Any = None, *, labels: Any = None, options: Any = ("A", "B"),
    missing: Literal["refuse", "bound"] = "refuse",  # rows left out of one order alone would not match
) -> Predictions:  # fmt: skip
    """Return predictions over two answers, first (0) and second (1), from a judge that names the better one.

    With ``swapped``, a log of the same questions with both answers in the other order, the log-odds of both orders are
    averaged, which removes position bias; the feature ``place_effect`` is half their difference.

    Args:
        log: The judge's answers, with top log-probabilities.
        swapped: The judge's answers in the other order, with the same ids, or None.
        labels: The name in ``options`` of the better answer, in the order of ``log``: a dict id → name, or one per answer.
        options: The names of the first and the second answer, or a dict name → spellings.
        missing: "refuse" or "bound", as in ``choices``.

    Raises:
        InputError: If an answer has no log-probabilities or no label, or an id is in one log only.

    Examples:
        >>> from calibrant.language import Log, Response, Token
        >>> one = Log((Response("q", "A", (Token("A", -0.1, {"A": -0.1, "B": -2.4}),)),))
        >>> two = Log((Response("q", "A", (Token("A", -0.6, {"A": -0.6, "B": -0.8}),)),))
        >>> pairwise(one, two).probs[0, 0]
        tensor(0.7408, dtype=torch.float64)

    References:
        Zheng et al. 2023, Judging LLM-as-a-Judge, §3.3 (position bias, answers in both orders).
    """
    if len(check_options(options)) != 2:
        raise refuse("two options", f"{len(options)}", "use choices for more")
    found = choices(log, options, labels=labels, missing=missing)
    if swapped is None:
        return found
    other = need_log(swapped, name="swapped")
    if other is log:
        raise refuse(
            "another log for the other order", "the log itself", "pass the judge's answers in the other order, or None"
        )
    place = {name: row for row, name in enumerate(other.ids)}
    if len(place) < len(other) or set(place) != set(log.ids) or len(other) != len(log):
        lost = sorted(set(place) ^ set(log.ids))
        raise refuse(
            "the same ids in both orders, each once",
            repr(lost[0]) if lost else "repeated ids",
            "log both orders of every question",
        )
    turned = choices(_without_targets(other)[[place[name] for name in log.ids]], options, missing=missing)
    # a judge that favours a place adds δ to the log-odds of the answer there: the mean of both orders is free of it, and half of their
    # difference is δ
    first = found.logits[:, 1] - found.logits[:, 0]
    second = turned.logits[:, 0] - turned.logits[:, 1]
    beside: dict[str, Any] = {**(found.features or {}), "place_effect": (first - second) / 2}
    return Predictions.from_binary_logits((first + second) / 2, found.labels, groups=found.groups, features=beside)


def _without_targets(log: Log) -> Log:
    """Return the log without its targets, which are answers to the judged question, not options of the judge."""
    return Log(tuple(replace(one, target=None) for one in log), log.source)
