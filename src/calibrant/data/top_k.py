"""Top-k log-probabilities, as language-model servers return them: a temperature from the k largest and the rest's mass."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_count, check_labels, check_matrix, check_unit_interval, refuse
from calibrant._core.constraints import checked
from calibrant._core.numerics import increasing_root
from calibrant.data.predictions import Predictions
from calibrant.data.record import Beside, Record, checked_beside

__all__ = ["TopK", "TopKTemperature"]

_SLACK = 1e-3  # k probabilities that went through float16 may add up to this much more than 1


@dataclass(frozen=True)
class TopKTemperature:
    """A temperature fitted on truncated rows, and what the truncation leaves open.

    Args:
        temperature: Between ``low`` and ``high``, their geometric mean.
        low: The smaller of the best T for the two extreme tails.
        high: The larger one.
        log_loss_error: How far the mean log-loss at ``temperature`` can be off, in nats: the two tails bound every
            other one.
    """

    temperature: float
    low: float
    high: float
    log_loss_error: float


@dataclass(frozen=True, eq=False, repr=False, init=False)
class TopK(Record):
    """The k largest log-probabilities of each row and the probability of everything else.

    Args:
        log_probs: (N, k) natural logarithms, k ≥ 2; in any order.
        tail: (N,) probability of all other classes together, in [0, 1]; None is what is missing to 1, or what rounding in
            the dtype of ``log_probs`` may hide if that is more, since a true class can lie where nothing seems missing.
        labels: (N,) the true class's column, k where it is not among the k; or None.
        groups: (N,) as in ``Predictions``, and so are weights and features.

    Raises:
        InputError: If a row's probabilities add up to more than 1.

    Examples:
        >>> rows = TopK(torch.tensor([[0.6, 0.3], [0.5, 0.1]]).log())
        >>> rows.tail
        tensor([0.1000, 0.4000], dtype=torch.float64)
        >>> rows.predictions([0, 2]).classes
        3
    """

    log_probs: Tensor
    tail: Tensor

    axes: ClassVar = {"log_probs": 2, "tail": 1}

    @checked
    def __init__(
        self, log_probs: Any, tail: Any = None, *, labels: Any = None, decision: None = None, **beside: Unpack[Beside]
    ) -> None:
        given = check_matrix(as_tensor(log_probs, name="log_probs"), name="log_probs")
        values = given.double()
        total = values.exp().sum(dim=1)
        bad = ~((total <= 1 + _SLACK) & (values.amax(dim=1) > -math.inf))
        if bool(bad.any()):
            row = int(torch.nonzero(bad)[0])
            raise refuse(
                "natural log-probabilities that add up to at most 1",
                f"{float(total[row]):.4g} in row {row}",
                "pass the server's logprobs, not logits",
            )
        if tail is None:
            rest = (1 - total).clamp_min(torch.finfo(given.dtype).eps)
        else:
            rest = check_unit_interval(as_tensor(tail, name="tail"), name="tail")
            if rest.shape[0] != values.shape[0] or bool(((total + rest - 1).abs() > _SLACK).any()):
                raise refuse("a tail that completes each row to 1", "another sum", "leave tail out to have it computed")
        known = None if labels is None else self._columns_of(labels, values)
        held = {"log_probs": values, "tail": rest, "labels": known, "decision": decision}
        for name, value in (held | checked_beside(values, beside)).items():
            object.__setattr__(self, name, value)  # as a frozen dataclass sets its own fields

    @staticmethod
    def _columns_of(labels: Any, values: Tensor) -> Tensor:
        rows, k = values.shape
        return check_labels(as_tensor(labels, name="labels"), rows=rows, classes=k + 1)

    @property
    def scores(self) -> Tensor:
        """(N, k): the log-probabilities."""
        return self.log_probs

    def _about(self) -> list[str]:
        return [f"{self.log_probs.shape[1]} classes and the rest", "unlabelled" if self.labels is None else "labelled"]

    def predictions(self, labels: Any = None) -> Predictions:
        """Return predictions over k + 1 classes, the last of which is "any other": what every calibrator can be fitted on.

        What is fitted so calibrates these k + 1 events, whose log-loss is measured without error; it says nothing of the
        classes inside the tail. It treats the tail as one class, which for a temperature T > 1 gives it too little: a T
        for the whole vocabulary comes from ``temperature``. Where a method treats classes apart (biases, one against the
        rest), sort each row first, so that a column means a rank.

        Args:
            labels: (N,) the true class's column, k where it is not among the k; or None for these rows' own, if any.
        """
        known = self.labels if labels is None else self._columns_of(labels, self.log_probs)
        logits = torch.cat([self.log_probs, self.tail.log()[:, None]], dim=1)
        return replace(Predictions.from_logits(logits), **self.beside | {"labels": known})

    def temperature(self, labels: Any, *, vocabulary: int) -> TopKTemperature:
        """Return the temperature of least log-loss of the k + 1 events, and how far the unseen tail leaves it open.

        At temperature T a tail of n classes weighs Σ p_i^(1/T), which depends on how it is spread: evenly over all
        unseen classes, or as concentrated as it can be, in classes as likely as the smallest seen. Both are fitted. The
        log-loss of a true class in the tail is that of the tail.

        Args:
            labels: (N,) the true class's column, k where it is not among the k.
            vocabulary: Number of all classes, > k.

        Raises:
            InputError: If labels or vocabulary do not fit.
        """
        k = int(self.log_probs.shape[1])
        check_count(vocabulary, name="vocabulary", low=k + 1)
        y = self._columns_of(labels, self.log_probs)
        # an excluded class (−inf) among the k bounds nothing: no unseen class is likelier than the smallest one seen
        smallest = self.log_probs.masked_fill(torch.isneginf(self.log_probs), math.inf).amin(dim=1).exp()
        even = torch.full_like(self.tail, vocabulary - k)
        # the fewest classes that can hold the tail, each as likely as the smallest seen
        concentrated = (self.tail / smallest).clamp(min=1.0, max=float(vocabulary - k))
        found = [math.exp(-self._log_beta(y, members)) for members in (concentrated, even)]
        low, high = min(found), max(found)
        # T is a scale: at the geometric mean both tails are off by the same factor
        best = math.sqrt(low * high)
        norms = [torch.logsumexp(self._scaled(1 / best, members), dim=1) for members in (concentrated, even)]
        tails = [self._scaled(1 / best, members)[:, -1] for members in (concentrated, even)]
        # log-loss under the even tail less that under the concentrated one, row by row; every other tail lies between
        gap = norms[1] - norms[0] - torch.where(y == k, tails[1] - tails[0], 0.0)
        return TopKTemperature(best, low, high, float(gap.abs().mean()))

    def _scaled(self, beta: float, members: Tensor) -> Tensor:
        """Return the unnormalised log-probabilities (N, k + 1) at T = 1/β of a tail of ``members`` (N,) equal classes."""
        log_tail = self.tail.clamp_min(1e-300).log()
        bucket = members.log() + beta * (log_tail - members.log())
        return torch.cat([beta * self.log_probs.clamp_min(-1e4), bucket[:, None]], dim=1)

    def _log_beta(self, labels: Tensor, members: Tensor) -> float:
        """Return the log β of least log-loss, which is convex in β."""
        # ∂ score / ∂β of each event; −inf is held at −10⁴, since 0 · −inf in the means below is NaN
        each = torch.cat(
            [self.log_probs.clamp_min(-1e4), (self.tail.clamp_min(1e-300) / members).log()[:, None]], dim=1
        )
        target = each.gather(1, labels[:, None])[:, 0].mean()

        def slope(u: float) -> tuple[float, float]:
            # u = log β, x = ∂ score / ∂β:  L′(u) = β (E_p[x] − x_y),  L″(u) = L′(u) + β² Var_p[x]
            beta = math.exp(u)
            p = torch.softmax(self._scaled(beta, members), dim=1)
            mean = (p * each).sum(dim=1)
            spread = (p * each**2).sum(dim=1) - mean**2
            first = float(mean.mean() - target)
            return beta * first, beta * first + beta**2 * float(spread.mean())

        return increasing_root(slope, low=math.log(1e-3), high=math.log(1e3), start=0.0, tolerance=1e-9).x
