"""Logits whose columns are split over processes (vocabulary parallelism): loss, metrics and temperature from reduced sums."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from calibrant._core.check import LABEL_EXCLUDED, as_tensor, check_labels, refuse
from calibrant._core.constraints import Positive, checked
from calibrant._core.numerics import row_chunks
from calibrant._objective.batch import reduce_rows
from calibrant.calibrators import TemperatureScaling
from calibrant.data.predictions import Decisions
from calibrant.errors import InputError
from calibrant.losses import CrossEntropyLoss, Loss, WeightedNLL
from calibrant.vocabulary.fused import called

T = TypeVar("T")


class ShardLayout(NamedTuple):
    """Shape and dtype of a process's columns, or why they are invalid; exchanged between processes."""

    rows: int = 0
    columns: int = 0
    dtype: str = ""
    invalid: str = ""


class ShardedLogits:
    """Logits (N, K) of which this process holds some columns; processes in order of rank hold consecutive columns.

    Every process creates one with its own columns of the same rows, calls the same methods with the same labels, and gets
    the same results, equal to those of the whole logits. The processes exchange a few numbers per row. Without
    ``torch.distributed`` this process's columns are all columns.

    Args:
        logits: (N, K_own) floating, this process's columns.
        group: The process group; None is all processes.

    Raises:
        InputError: If processes hold different numbers of rows or dtypes; raised in every process.

    Examples:
        >>> sharded = ShardedLogits(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        >>> sharded.nll([0, 0])
        tensor([0.1269, 1.3133], dtype=torch.float64)
        >>> from calibrant.losses import FocalLoss
        >>> sharded.loss([0, 0], FocalLoss(2.0))
        tensor(0.3518)
    """

    @checked
    def __init__(self, logits: Tensor, *, group: "distributed.ProcessGroup | None" = None) -> None:
        self.group = group
        self.alone = not (distributed.is_available() and distributed.is_initialized())
        if not isinstance(logits, Tensor):
            own_layout = ShardLayout(invalid=type(logits).__name__)
        elif logits.dim() != 2 or not logits.is_floating_point():
            own_layout = ShardLayout(invalid=f"{logits.dtype} {tuple(logits.shape)}")
        else:
            own_layout = ShardLayout(logits.shape[0], logits.shape[1], str(logits.dtype))
        layouts = self._all(own_layout)  # raised in every process, or in none
        for rank, layout in enumerate(layouts):
            if layout.invalid:
                expected = "logits as a floating tensor (N, K_own) in every process"
                raise refuse(expected, f"{layout.invalid} in rank {rank}", "pass one there")
        if len({(layout.rows, layout.dtype) for layout in layouts}) > 1:
            got = ", ".join(f"{layout.rows} of {layout.dtype}" for layout in layouts)
            raise refuse("the same rows and dtype in all processes", got, "pass columns of one batch")
        own = 0 if self.alone else distributed.get_rank(group)
        self.logits = logits
        self.first = sum(layout.columns for layout in layouts[:own])
        self.classes = sum(layout.columns for layout in layouts)
        if self.classes < 2 or logits.shape[0] < 1:
            raise refuse("N ≥ 1 rows and K ≥ 2 classes", f"({logits.shape[0]}, {self.classes})", "pass logits")

    def __len__(self) -> int:
        return int(self.logits.shape[0])

    def __repr__(self) -> str:
        last = self.first + self.logits.shape[1]
        return f"ShardedLogits({len(self)} rows, classes {self.first} to {last} of {self.classes})"

    def loss(self, labels: Any, loss: Loss) -> Tensor:
        """Return the reduced loss, differentiable with respect to this process's columns.

        Every process gets the value over all columns; the backward pass does not communicate. If ``logits`` came from a
        layer with sharded columns, that layer must sum the gradient of its input over the processes, as such layers do.

        Args:
            labels: (N,) class indices of the whole vocabulary, the same in all processes.
            loss: A loss of the true class's probability: ``CrossEntropyLoss``, or a loss with ``from_nll`` such as ``FocalLoss``.

        Returns:
            A scalar, or with ``reduction="none"`` the terms (N,).

        Raises:
            InputError: If the loss needs more than the true class's probability, or labels are not valid.
        """
        if not isinstance(loss, WeightedNLL | CrossEntropyLoss):
            raise refuse(
                "a loss of the true class's probability",
                called(loss),
                "choose losses.CrossEntropyLoss(), losses.FocalLoss(3.0) or another that has from_nll",
            )
        y = as_tensor(labels, name="labels").to(self.logits.device)
        check_labels(torch.where(y == loss.ignore_index, 0, y), rows=len(self), classes=self.classes)
        batch = loss.places(y, classes=self.classes, dtype=self.logits.dtype)
        log_odds = batch.mask(_LogOdds.apply(self.logits, batch.labels, self))  # a padding row may be all −inf
        log_p, log_not_p = F.logsigmoid(log_odds), F.logsigmoid(-log_odds)
        terms = loss.of(log_p, log_not_p) if isinstance(loss, WeightedNLL) else -log_p
        return reduce_rows(batch.mask(terms) * batch.weights, batch.weights, loss.reduction, y.shape)

    @cached_property
    def row_max(self) -> Tensor:
        """(N,) largest logit of each row, in the logits' dtype.

        Raises:
            InputError: If a logit is NaN or +inf, or all logits of a row are −inf; raised in every process.
        """
        own = self._own_max
        bad = own.isnan() | (own == math.inf)
        (row,) = self._reduce(_first_true(bad)[None], "min").tolist()
        if row < len(self):
            raise refuse(
                "finite logits (−inf for an excluded class)", f"NaN or +inf in row {row}", "check the model's output"
            )
        top = self._reduce(own, "max")
        if bool((empty := top == -math.inf).any()):
            raise refuse("a class that is not excluded", f"only −inf in row {int(_first_true(empty))}", "drop the row")
        return top

    @cached_property
    def log_norm(self) -> Tensor:
        """(N,) float64: log Σ_k exp(logit_k) over all processes."""
        return self.row_max.double() + torch.log(self._exp_sum)

    @cached_property
    def confidence(self) -> Tensor:
        """(N,) float64: the probability of the predicted class."""
        return 1 / self._exp_sum

    @cached_property
    def predicted(self) -> Tensor:
        """(N,) int64: the first index of the maximum over all processes."""
        place = torch.full((len(self),), self.classes, device=self.logits.device)
        if self.logits.shape[1]:
            hit = self._own_max == self.row_max
            place = torch.where(hit, self.logits.detach().argmax(dim=1) + self.first, place)
        return self._reduce(place, "min")

    def nll(self, labels: Any) -> Tensor:
        """Return −log p of ``labels`` (N,) in float64, without gradient."""
        return self.log_norm - self.at(labels)

    def at(self, labels: Any) -> Tensor:
        """Return the logit of ``labels`` (N,) in float64, without gradient."""
        own, _ = self.own_of(self.logits.detach(), self._labels(labels))
        return self._reduce(own.double(), "max")

    def top_label(self, labels: Any) -> Decisions:
        """Return pairs of confidence and correctness, which every metric of the top label accepts."""
        y = self._labels(labels)
        return Decisions(self.confidence, (self.predicted == y).double(), decision=self.predicted, labels=y)

    def fit_temperature(self, labels: Any) -> TemperatureScaling:
        """Return temperature scaling fitted by log-loss, the same in all processes: Newton's method on reduced sums.

        Raises:
            InputError: If data are not valid.
            FitError: If the fit does not converge.
        """
        own = self.at(labels)
        if bool((excluded := torch.isinf(own)).any()):
            row = int(_first_true(excluded))
            raise InputError("a finite logit for every label", f"−inf in row {row}", LABEL_EXCLUDED)
        below = own - self.row_max.double()
        return TemperatureScaling.from_passes(_ShardedPasses(self, float(below.mean())), classes=self.classes)

    @checked
    def tempered(self, temperature: Positive) -> "ShardedLogits":
        """Return these logits divided by ``temperature`` > 0."""
        return ShardedLogits(self.logits / temperature, group=self.group)

    def own_of(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logit (n,) at each of ``labels`` (n,), −inf where another process holds it, and its column (n, 1) or −1."""
        column = labels - self.first
        held = (column >= 0) & (column < logits.shape[1])
        if not logits.shape[1]:
            return logits.new_full(labels.shape, -math.inf), column.new_full((len(labels), 1), -1)
        value = logits.gather(1, column.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        return torch.where(held, value, -math.inf), torch.where(held, column, -1)[:, None]

    @cached_property
    def _own_max(self) -> Tensor:
        z = self.logits.detach()
        return z.amax(dim=1) if z.shape[1] else z.new_full((len(self),), -math.inf)

    @cached_property
    def _exp_sum(self) -> Tensor:
        z, top = self.logits.detach(), self.row_max.double()
        sums = torch.zeros(len(self), dtype=torch.float64, device=z.device)
        for rows in row_chunks(*z.shape, device=z.device):
            torch.sum((z[rows].double() - top[rows, None]).exp_(), dim=1, out=sums[rows])
        return self._reduce(sums, "sum")

    def _labels(self, labels: Any) -> Tensor:
        y = as_tensor(labels, name="labels").to(self.logits.device)
        return check_labels(y, rows=len(self), classes=self.classes)

    def _all(self, value: T) -> list[T]:
        """Return the value of every process, in order of rank."""
        if self.alone:
            return [value]
        gathered: list[T] = [value] * distributed.get_world_size(self.group)
        distributed.all_gather_object(gathered, value, group=self.group)
        return gathered

    def _reduce(self, values: Tensor, how: str) -> Tensor:
        """Return the sum, largest or smallest of ``values`` over all processes."""
        if self.alone:
            return values
        operation = {"sum": distributed.ReduceOp.SUM, "max": distributed.ReduceOp.MAX, "min": distributed.ReduceOp.MIN}
        values = values.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(values, operation[how], group=self.group)
        return values


def _first_true(flags: Tensor) -> Tensor:
    """Return the index () of the first true flag (N,), N if there is none."""
    places = torch.arange(flags.shape[0], device=flags.device)
    return torch.where(flags, places, flags.shape[0]).amin()


class _LogOdds(torch.autograd.Function):
    """log(p_y / (1 − p_y)) = z_y − log Σ_{k≠y} exp z_k: log p_y and log(1 − p_y) both follow from it without cancellation."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, shards: ShardedLogits) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        own, column = shards.own_of(logits, labels)
        top = torch.full_like(own, -math.inf, dtype=wide)
        sums = torch.zeros_like(top)
        chunks = list(row_chunks(*logits.shape, device=logits.device)) if logits.shape[1] else []
        for rows in chunks:
            top[rows] = _without_label(logits[rows], column[rows], wide).amax(dim=1)
        pair = shards._reduce(torch.stack([own.to(wide), top]), "max")
        own, top = pair[0], torch.where(pair[1] == -math.inf, 0.0, pair[1])
        for rows in chunks:
            torch.sum(
                _without_label(logits[rows], column[rows], wide).sub_(top[rows, None]).exp_(), dim=1, out=sums[rows]
            )
        rest = top + torch.log(shards._reduce(sums, "sum"))
        ctx.save_for_backward(logits, column, rest)
        return own - rest

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise InputError(
                "first derivatives of sharded losses only", "create_graph=True", "for second ones gather the logits"
            )
        logits, column, rest = ctx.saved_tensors
        gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
        finite = torch.where(rest == -math.inf, 0.0, rest)
        for rows in row_chunks(*logits.shape, device=logits.device) if logits.shape[1] else ():
            others = _without_label(logits[rows], column[rows], rest.dtype).sub_(finite[rows, None]).exp_()
            others.mul_(-grad[rows, None])
            held = column[rows] >= 0
            others.scatter_add_(1, column[rows].clamp_min(0), torch.where(held, grad[rows, None], 0.0))
            gradient[rows] = torch.where(
                grad[rows, None] == 0, 0.0, others
            )  # a padding row may hold NaN, and 0 · NaN is NaN
        return gradient, None, None


def _without_label(logits: Tensor, column: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of ``logits`` (n, k) in ``dtype`` with −inf at ``column`` (n, 1), where it is not −1."""
    z = logits.to(dtype, copy=True)
    index = column.clamp_min(0)
    return z.scatter_(1, index, torch.where(column >= 0, -math.inf, z.gather(1, index)))


@dataclass
class _ShardedPasses:
    """The sums that a temperature fit needs, reduced over processes."""

    shards: ShardedLogits
    margin: float

    @property
    def mass(self) -> float:
        return float(len(self.shards))

    def moments(self, beta: float, dtype: torch.dtype) -> tuple[float, float]:
        shards, z = self.shards, self.shards.logits.detach()
        sums = torch.zeros(3, len(shards), dtype=torch.float64, device=z.device)
        for rows in row_chunks(*z.shape, itemsize=dtype.itemsize, device=z.device):
            d = (z[rows].double() - shards.row_max[rows, None].double()).to(dtype).clamp_min_(-1e30)
            e = (d * beta).exp_()
            sums[0, rows] = e.sum(dim=1).double()
            sums[1, rows] = e.mul_(d).sum(dim=1).double()
            sums[2, rows] = e.mul_(d).sum(dim=1).double()
        norm, mean, square = shards._reduce(sums, "sum")
        mean = mean / norm
        both = torch.stack([mean.sum(), (square / norm - mean**2).sum()])
        is_first = shards.alone or torch.distributed.get_rank(shards.group) == 0
        # every process uses the sums of rank 0: if sums differed in a last digit, one process could stop a Newton step
        # earlier than the others, which would then wait for it in the next reduction
        first, second = shards._reduce(both if is_first else torch.zeros_like(both), "sum").tolist()
        return first, second
