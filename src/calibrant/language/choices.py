"""Multiple choice: the probability of each answer option."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import checked
from calibrant._core.warn import warn_user
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, Remedy, UsageWarning
from calibrant.language.log import Answers, Log, Response, Token, features_of, groups_of, option_numbers

_LEAST = 1e-7  # remaining probability assumed if those returned, rounded to float32, sum to 1
_WHOLE = 1.01  # largest accepted sum: servers round log-probabilities, some to two digits

Missing = Literal["refuse", "bound", "drop"]


@checked
def choices(
    log: Answers, options: Any = None, *, labels: Any = None,
    normalize: Literal["none", "characters", "bytes"] = "none", missing: Missing = "refuse",
) -> Predictions:  # fmt: skip
    """Return predictions over the answer options; the logits are log-probabilities.

    From top log-probabilities, an option's probability is the sum over its spellings (with and without a leading space) at the
    first token that is not white space. The feature ``other_mass`` is the probability of all other tokens, which the softmax over
    the options ignores, and ``bounded`` the number of options whose probability is an upper bound. From scored options
    (lm-evaluation-harness), the logits are their log-likelihoods; questions with fewer options are padded with −inf.

    Args:
        log: From a reader of this package.
        options: Names in order, ("A", "B"); or a dict name → spellings of its first token, {"positive": ["positive", "pos"]}.
            None takes the options scored in the log.
        labels: The true option's name: a dict id → name (``read_labels``), or one per answer; None takes the log's targets; if
            it has none, the predictions have no labels.
        normalize: Divide each scored option's log-likelihood by its number of "characters" or "bytes", as the harness's
            acc_norm and acc_bytes do; "none".
        missing: What to do if an option is not among the top tokens. "refuse": raise an error. "bound": use its largest
            possible probability, the smaller of the lowest returned probability and 1 minus the sum of all returned. "drop":
            leave the answer out and warn how many were. An answer without any option is refused or dropped.

    Raises:
        InputError: If an answer has no log-probabilities, lacks an option, or its label is not an option; it is named.

    Examples:
        >>> from calibrant.language import Log, Response, Token
        >>> top = {" A": -0.36, "A": -3.0, " B": -1.61, " The": -3.0}
        >>> rows = choices(Log((Response("q1", " A", (Token(" A", -0.36, top),)),)), ("A", "B"), labels=["A"])
        >>> rows.probs
        tensor([[0.7890, 0.2110]], dtype=torch.float64)
        >>> rows.features["other_mass"]
        tensor([0.0526], dtype=torch.float64)

    References:
        OpenAI API reference, ``top_logprobs``; lm-evaluation-harness, acc_norm and acc_bytes.
    """
    if options is None:
        return _over_scored_options(log, labels, normalize)
    if normalize != "none":
        remedy = Remedy("leave normalize out", command="leave --normalize out")
        raise refuse("scored options with normalize", "options of top tokens", remedy)
    spellings = check_options(options)
    if any(one.options for one in log):
        raise refuse("options of top tokens", "a log that has scored options", "leave options out: the log names them")
    names = [tuple(spellings)] * len(log)
    # labels first: they are refused before the work, and of answers that are left out, too
    truth = option_numbers(log, labels, names)
    found = {i: row for i, one in enumerate(log) if (row := _row(one, spellings, log.source, missing)) is not None}
    if not found:
        got = f"none of {len(log):,} in {log.source}"
        raise refuse("an answer with every option", got, "name the options' first tokens")
    kept, rows = log[list(found)], found.values()
    if left := len(log) - len(kept):
        warn_user(
            f"{log.source}: left out {left:,} of {len(log):,} answers, whose top tokens lack an option", UsageWarning
        )
    beside: dict[str, Any] = features_of(kept)
    beside |= {"other_mass": [one.other for one in rows], "bounded": [one.bounded for one in rows]}
    logits = torch.tensor([one.log_probs for one in rows], dtype=torch.float64)
    kept_truth = None if truth is None else truth[list(found)]
    return Predictions.from_logits(logits, kept_truth, groups=groups_of(kept), unchecked_kind=True, features=beside)


def check_options(options: Any) -> dict[str, tuple[str, ...]]:
    """Return each option's name with the spellings of its first token.

    Raises:
        InputError: If there are fewer than two, or two options share a spelling.
    """
    if isinstance(options, list | tuple) and all(isinstance(one, str) for one in options):
        options = {one: [one] for one in options}
    if not isinstance(options, Mapping) or len(options) < 2:
        remedy = 'pass names such as ("A", "B"), or a dict name → spellings'
        raise refuse("at least two distinct options", shown(options), remedy)
    made: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for name, spelled in options.items():
        texts = [spelled] if isinstance(spelled, str) else spelled
        listed = isinstance(name, str) and isinstance(texts, Sequence) and len(texts) > 0
        if not listed or not all(isinstance(text, str) and text.strip() for text in texts):
            remedy = 'pass {"positive": ["positive", "pos"]}'
            raise refuse("options as texts, or a dict name → spellings", shown(options), remedy)
        made[name.strip()] = tuple(_bare_token(text) for text in texts)
        for text in made[name.strip()]:
            if owner.setdefault(text, name) != name:
                got = f"{text!r} of {owner[text]!r} and {name!r}"
                raise refuse("a spelling of one option", got, "give each its own")
    if len(made) < len(options):
        raise refuse("distinct options", shown(options), "name each once")
    return made


@dataclass(frozen=True)
class _ChoiceRow:
    log_probs: list[float]
    other: float
    bounded: int


def _row(one: Response, spellings: Mapping[str, tuple[str, ...]], source: str, missing: str) -> _ChoiceRow | None:
    """Return the log-probabilities of the options in an answer, or None if the answer is to be left out."""
    token = _first_word(one, source)
    if (whole := math.fsum(math.exp(value) for value in token.top.values())) > _WHOLE:
        expected = f"top log-probabilities of {one.id!r} that sum to at most 1"
        remedy = "log natural logarithms of one distribution, before a penalty or a filter of tokens"
        raise InputError(expected, f"{whole:.3g}", remedy, place=source)
    # tokens that differ in white space alone are one spelling of the option: their probabilities add
    by_text: dict[str, list[float]] = {}
    for text, value in token.top.items():
        by_text.setdefault(_bare_token(text), []).append(value)
    masses = [math.fsum(math.exp(v) for text in texts for v in by_text.get(text, [])) for texts in spellings.values()]
    lost = [name for name, mass in zip(spellings, masses, strict=True) if mass == 0]
    # a missing option has less than the least token returned, which is not 0
    if lost and missing == "drop":
        return None
    if len(lost) == len(masses):
        tokens = ", ".join(map(repr, sorted(token.top, key=lambda text: -token.top[text])[:4]))
        ask = "name the options' first tokens, or leave such answers out"
        remedies = Remedy(f"{ask} (missing='drop')", command=f"{ask} (--missing drop)")
        expected = f"an option ({', '.join(spellings)}) among the top tokens of {one.id!r}"
        raise InputError(expected, tokens, remedies, place=source)
    if lost and missing == "refuse":
        ask = "ask for more top_logprobs, or use its largest possible probability"
        remedies = Remedy(f"{ask} (missing='bound')", command=f"{ask} (--missing bound)")
        raise InputError(
            f"every option among the top tokens of {one.id!r}", f"none for {lost[0]!r}", remedies, place=source
        )
    most = _largest_hidden(token)
    values = [math.log(mass if mass > 0 else most) for mass in masses]
    return _ChoiceRow(values, max(0.0, 1 - math.fsum(masses)), len(lost))


def _largest_hidden(token: Token) -> float:
    """Return the largest probability that a token not returned by the server can have.

    It is at most the lowest returned probability, ignoring the sampled token, which servers return however improbable it is.
    """
    others = [value for text, value in token.top.items() if text != token.text] or list(token.top.values())
    rest = 1 - math.fsum(math.exp(value) for value in token.top.values())
    return min(math.exp(min(others)), max(rest, _LEAST))


def _first_word(one: Response, source: str) -> Token:
    """Return the first token of the answer that is not white space."""
    for token in one.tokens:
        if _bare_token(token.text):
            if not token.top:
                break
            return token
    got = "none" if not one.tokens else "its own tokens' alone"
    remedy = "ask the server for logprobs with top_logprobs=20"
    raise InputError(f"top log-probabilities of {one.id!r}", got, remedy, place=source)


def _bare_token(token: str) -> str:
    """Return a token without surrounding white space, including the characters by which tokenizers represent it."""
    return token.lstrip("Ġ▁Ċ").strip()


def _over_scored_options(log: Log, labels: Any, normalize: str) -> Predictions:
    """Return predictions over the options that the log scored."""
    for one in log:
        if not one.options:
            remedy = "name the options of top tokens, or use sequences or verbalized for free answers"
            raise InputError(f"scored options of {one.id!r}", "a free answer", remedy, place=log.source)
    names = [tuple(option.text.strip() for option in one.options) for one in log]
    # questions with fewer options have −inf in the last columns: classes that are excluded
    most = max(map(len, names))
    logits = torch.full((len(log), most), -math.inf, dtype=torch.float64)
    for row, one in enumerate(log):
        for column, option in enumerate(one.options):
            own = option.text.removeprefix(" ")  # between question and option: no part of its length
            length = {"none": 1, "characters": len(own), "bytes": len(own.encode())}[normalize]
            logits[row, column] = option.log_prob / max(1, length)
    truth = option_numbers(log, labels, names)
    return Predictions.from_logits(logits, truth, groups=groups_of(log), unchecked_kind=True, features=features_of(log))
