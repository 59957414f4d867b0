"""Assertions in a test: the gate, and the clauses of the contracts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant._core.check import check_mapping
from calibrant._core.constraints import checked
from calibrant.data.predictions import BinaryPairs, Predictions
from calibrant.errors import CalibrantError, optional
from calibrant.operate import check
from calibrant.operate.check import Check


@checked
def assert_calibrated(
    predictions: Predictions | BinaryPairs,
    *,
    ece: float | None = None,
    maximum: Mapping[str, float] | None = None,
    minimum: Mapping[str, float] | None = None,
    no_worse: Mapping[str, float] | None = None,
    baseline: Predictions | BinaryPairs | None = None,
    features: Mapping[str, Any] | None = None,
) -> Check:
    """Fail a test whose predictions break a limit, and skip it, with the reason, if the rows are too few to say.

    Args:
        predictions: As in ``operate.check``.
        ece: Short for ``maximum={"ece": …}``.
        maximum: As there.
        minimum: As there.
        no_worse: As there.
        baseline: As there.
        features: As there.

    Raises:
        AssertionError: If a limit is broken.
        MissingExtraError: If pytest is not installed and the rows are too few.

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_binary_probs([0.9] * 2000, [1] * 1800 + [0] * 200)
        >>> assert_calibrated(data, ece=0.05).verdict
        'pass'
    """
    limits = {
        **check_mapping(maximum, name="maximum", example="{'ece': 0.03}"),
        **({} if ece is None else {"ece": ece}),
    }
    found = check(predictions, maximum=limits, minimum=minimum, no_worse=no_worse, baseline=baseline, features=features)
    if found.verdict == "fail":
        raise AssertionError(str(found))
    if found.verdict == "not enough evidence":
        with optional("pytest", extra="dev"):
            import pytest
        pytest.skip(str(found))
    return found


@dataclass(frozen=True)
class Contract:
    """What a family of methods is held to, clause by clause; ``place`` says where it is written."""

    place: str

    def require(self, holds: bool, clause: str, remedy: str = "") -> None:
        """Fail unless a clause holds."""
        if not holds:
            raise AssertionError(f"expected that {clause}, got otherwise; {remedy or f'see {self.place}'}")


def normal_sample(*shape: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return float32 logits of ``shape`` (N, K, …) and labels (N, …) that do not depend on them."""
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(shape, generator=generator)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)


def require_refusal(error: type[CalibrantError], what: str, call: Callable[..., object], *arguments: Any) -> None:
    """Fail unless ``call(*arguments)``, which is ``what``, ends in ``error``."""
    try:
        call(*arguments)
    except error:
        return
    except Exception as other:
        got = type(other).__name__
        raise AssertionError(f"expected that it refuses {what} by {error.__name__}, got {got}; see its text") from other
    name = error.__name__
    raise AssertionError(f"expected that it refuses {what} by {name}, got an answer; call the base's checks")
