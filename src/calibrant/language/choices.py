"""The probability of each option of a multiple-choice question, from the log-probabilities of its first token."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from calibrant._core.warn import warn_user
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, UsageWarning

_LEAST = 1e-7  # probability of all other tokens if the returned probabilities, rounded to float32, sum to 1
_WHOLE = 1.01  # largest accepted sum of probabilities: servers round log-probabilities, some to two digits

Spellings = dict[str, tuple[str, ...]]


def choices(
    scores: Any,
    options: Sequence[str] | Mapping[str, str | Sequence[str]],
    labels: Any = None,
    *,
    sampled: Sequence[str] | None = None,
    missing: Literal["refuse", "bound", "drop"] = "refuse",
) -> Predictions:
    """Return predictions over answer options; the logits are log-probabilities.

    An option's probability is the sum over its spellings, with and without a leading space. The feature ``other_mass`` is the
    probability of all other tokens, which the softmax over the options ignores. The feature ``bounded`` is the number of options
    for which only an upper bound of the probability is known.

    Args:
        scores: Natural log-probabilities of the answer's first token: N mappings token → log-probability of the most probable
            tokens, as servers return them (``top_logprobs``), or an array (N, K) with one column per option.
        options: The K names in order, such as ("A", "B"), or a dict from each name to the spellings of its first token,
            such as {"positive": ["positive", "pos"]}.
        labels: (N,) true options, by name or number; or None.
        sampled: (N,) tokens that were sampled, if ``scores`` contain them as well as the most probable ones. Servers return the
            sampled token however improbable it is, so its probability bounds no other token's.
        missing: What to do if an option is not among the top tokens. "refuse" raises an error. "bound" uses the option's largest
            possible probability: the lowest returned probability, or 1 minus the sum of all returned ones if that is smaller.
            "drop" leaves the row out and warns about the number of such rows. A row without any option is refused or
            dropped.

    Returns:
        Predictions of K classes for the rows kept.

    Raises:
        InputError: If a row has no log-probabilities or lacks an option, or its label is not an option; the error names the row.

    Examples:
        >>> top = {" A": -0.36, "A": -3.0, " B": -1.61, " The": -3.0}
        >>> rows = choices([top], ("A", "B"), ["A"])
        >>> rows.probs
        tensor([[0.7890, 0.2110]], dtype=torch.float64)
        >>> rows.features["other_mass"]
        tensor([0.0526], dtype=torch.float64)

    References:
        OpenAI API reference, ``top_logprobs``.
    """
    if missing not in ("refuse", "bound", "drop"):
        raise InputError(f"missing must be 'refuse', 'bound' or 'drop', not {missing!r}")
    spellings = _spellings_of(options)
    rows = _top_tokens(scores, spellings)
    truth = _option_numbers(labels, tuple(spellings), rows=len(rows))
    tokens: Sequence[str | None] = [None] * len(rows) if sampled is None else sampled
    pairs = enumerate(zip(rows, tokens, strict=True))
    found = [_option_masses(top, spellings, row, token, missing) for row, (top, token) in pairs]
    kept = [row for row, masses in enumerate(found) if masses is not None]
    if not kept:
        raise InputError(
            f"none of {len(rows):,} rows has every option among its top tokens; name the options' first tokens"
        )
    if left_out := len(rows) - len(kept):
        warn_user(f"left out {left_out:,} of {len(rows):,} rows, whose top tokens lack an option", UsageWarning)
    logs, other_mass, bounded = zip(*(masses for masses in found if masses is not None), strict=True)
    return Predictions.from_logits(
        torch.tensor(logs, dtype=torch.float64),
        None if truth is None else truth[kept],
        unchecked_kind=True,
        features={"other_mass": list(other_mass), "bounded": list(bounded)},
    )


def _spellings_of(options: Any) -> Spellings:
    """Return each option's name with the spellings of its first token."""
    if not isinstance(options, Mapping):
        distinct = isinstance(options, list | tuple) and len(set(options)) == len(options)
        options = {name: name for name in options} if distinct else {}
    if len(options) < 2:
        raise InputError('options must be at least two distinct names, ("A", "B"), or a dict name → spellings')
    spellings: Spellings = {}
    owner: dict[str, str] = {}
    for name, texts in options.items():
        spellings[name] = tuple(_bare_token(text) for text in ([texts] if isinstance(texts, str) else texts))
        for text in spellings[name]:
            if not text or owner.setdefault(text, name) != name:
                both = f"{owner.get(text, name)!r} and {name!r}"
                raise InputError(f"{text!r} is a spelling of both {both}; give each option spellings of its own")
    return spellings


def _top_tokens(scores: Any, spellings: Spellings) -> list[Mapping[str, float]]:
    """Return a mapping token → log-probability for each row; for an array, the tokens are the options."""
    rows = scores.tolist() if hasattr(scores, "tolist") else list(scores)
    if rows and not any(one is None or isinstance(one, Mapping) for one in rows):
        matrix = np.asarray(rows, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[1] != len(spellings):
            shape = f"(N, {len(spellings)}), one column for each option"
            raise InputError(f"scores must have the shape {shape}, not {matrix.shape}")
        tokens = [texts[0] for texts in spellings.values()]
        rows = [dict(zip(tokens, values, strict=True)) for values in matrix.tolist()]
    for row, top in enumerate(rows):
        if not top:
            raise InputError(f"row {row} has no log-probabilities; ask the server for logprobs with top_logprobs=20")
        if not all(value <= 1e-3 for value in top.values()):
            what = "a score above 0 or NaN; scores must be natural logarithms of probabilities"
            raise InputError(f"row {row} has {what}")
        if (whole := math.fsum(map(math.exp, top.values()))) > _WHOLE:
            remedy = "pass natural logarithms of one distribution, before any penalty or filter of tokens"
            raise InputError(f"the probabilities of row {row} sum to {whole:.3g}, above 1; {remedy}")
    return rows


def _option_numbers(labels: Any, names: tuple[str, ...], *, rows: int) -> torch.Tensor | None:
    """Return the number (N,) of the true option of each row, given by name or by number."""
    if labels is None:
        return None
    given = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if len(given) != rows:
        raise InputError(f"labels must be one per row, {rows:,}, not {len(given):,}")
    numbers = {name: number for number, name in enumerate(names)} | {number: number for number in range(len(names))}
    for row, label in enumerate(given):
        if isinstance(label, bool) or label not in numbers:
            raise InputError(f"the label of row {row} is {label!r}, which is not among the options {', '.join(names)}")
    return torch.tensor([numbers[label] for label in given])


def _option_masses(
    top: Mapping[str, float], spellings: Spellings, row: int, sampled: str | None, missing: str
) -> tuple[list[float], float, int] | None:
    """Return the options' log-probabilities, the probability of other tokens, and the number of bounded options.

    The result is None if the row is to be dropped.
    """
    # tokens that differ only in white space are the same spelling, so their probabilities add
    mass_of_text: dict[str, float] = {}
    for token, value in top.items():
        text = _bare_token(token)
        mass_of_text[text] = mass_of_text.get(text, 0.0) + math.exp(value)
    masses = [math.fsum(mass_of_text.get(text, 0.0) for text in texts) for texts in spellings.values()]
    lost = [name for name, mass in zip(spellings, masses, strict=True) if mass == 0]
    if lost and missing == "drop":
        return None
    if len(lost) == len(masses):
        tokens = ", ".join(map(repr, sorted(top, key=lambda text: -top[text])[:4]))
        remedy = 'name the options\' first tokens, or leave such rows out with missing="drop"'
        raise InputError(f"row {row} has no option ({', '.join(lost)}) among its top tokens {tokens}; {remedy}")
    if lost and missing == "refuse":
        remedy = 'ask for more top_logprobs, or use its largest possible probability with missing="bound"'
        raise InputError(f"row {row} has no {lost[0]!r} among its top tokens; {remedy}")
    # an option that was not returned is at most as probable as the least probable returned token, and as the rest up to
    # 1
    returned = [value for token, value in top.items() if token != sampled] or list(top.values())
    rest = 1 - math.fsum(map(math.exp, top.values()))
    largest = min(math.exp(min(returned)), max(rest, _LEAST))
    logs = [math.log(mass if mass > 0 else largest) for mass in masses]
    return logs, max(0.0, 1 - math.fsum(masses)), len(lost)


def _bare_token(token: str) -> str:
    """Return a token without surrounding white space or the characters that tokenizers use for it."""
    return token.lstrip("Ġ▁Ċ").strip()
