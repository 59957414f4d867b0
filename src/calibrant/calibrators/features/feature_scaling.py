"""A temperature, and for two classes a bias, that vary linearly with numeric features of the row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Positive
from calibrant._core.minimise import Objective, Optimum, SecondOrder, minimise
from calibrant.calibrators.affine.fit import centre_rows, keep_excluded, lift_excluded, logit_squares
from calibrant.calibrators.base.calibrator import ByFeatures, Certified
from calibrant.calibrators.base.chunks import check_label_logits
from calibrant.calibrators.features.columns import KnownColumn, Names, as_bytes, from_bytes, names_of
from calibrant.data.record import Features
from calibrant.rows import Chunk, RowSource

_MOST_COLUMNS = 100
_TOLERANCE = 1e-10  # of a gradient entry of the mean log-loss, in nats per standard deviation of a feature
# rows of prior on the slope and the bias of the mean row, as in PlattScaling: it keeps separable data finite
_SETTLES = 1e-3


@dataclass(frozen=True)
class Hinges:
    """Columns min(x, highest)_owner − knot, or 0 where that is negative, standardised.

    Args:
        owner: (P,) which number a column is of.
        knot: (P,) where it begins.
        highest: (P,) where it ends.
        center: (P,) its mean on the fitting rows.
        spread: (P,) its standard deviation there.
    """

    owner: Tensor
    knot: Tensor
    highest: Tensor
    center: Tensor
    spread: Tensor

    def design(self, values: Tensor) -> Tensor:
        """Return (n, 1 + P): ones, and the standardised columns of ``values`` (n, F); 0, the mean, where a value is NaN."""
        x = torch.minimum(values[:, self.owner], self.highest)
        columns = ((x - self.knot).clamp_min(0.0) - self.center) / self.spread
        columns = torch.where(torch.isnan(x), 0.0, columns)
        return torch.cat([values.new_ones(values.shape[0], 1), columns], dim=1)


def fit_by_design(sums: SecondOrder, first: Tensor, *, parts: int, ridge: float, mass: float, unit: float) -> Optimum:
    """Return the coefficients of slopes, and with two ``parts`` of biases, under ridge / mass · Σ of those of features squared.

    Args:
        sums: Of the log-loss, as ``sums_by_design`` returns them.
        first: (parts · (1 + C),) where the search begins.
        parts: 1, or 2 with biases.
        ridge: In rows.
        mass: Σ weights.
        unit: The slope that changes nothing.
    """
    strength = torch.full_like(first, ridge / mass).view(parts, -1)
    strength[:, 0] = _SETTLES / mass
    centre = torch.zeros_like(first)
    centre[0] = unit
    return minimise(Objective(mass, sums, ridge=strength.view(-1), centre=centre), first, tolerance=_TOLERANCE)


def sums_by_design(
    design: Tensor, weight: Tensor, loss: Tensor, first: Sequence[Tensor], second: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ w loss, its gradient (P,) and its Hessian (P, P) by the coefficients.

    Args:
        design: (n, 1 + C).
        weight: (n,).
        loss: (n,).
        first: Its derivatives (n,) by slope and bias.
        second: Its second derivatives (n,).
    """
    gradient = torch.cat([(one * weight) @ design for one in first])
    blocks = [torch.cat([(design.T * (one * weight)) @ design for one in row], dim=1) for row in second]
    return weight @ loss, gradient, torch.cat(blocks)


class FeatureScaling(Certified, ByFeatures):
    """softmax(s(f) · z + e(f) · 1[class 1]): slope s = a₀ + Σ a_j f_j and bias e = b₀ + Σ b_j f_j by numeric features f of a row.

    With two classes it is a logistic regression of the label on the log-odds, the features and their products: several scores of
    one answer, such as the mean log-probability and the length of a language model's, become one probability. With more
    classes each row has a temperature of its own, 1 / s. Features are standardised on the fitting rows and held
    within the range they had there. ridge / N · Σ (a_j² + b_j²) is added to the mean log-loss. The fit is convex and ends with a
    gradient certificate.

    Rows without features get the map of the mean features. Where the features say that the model's order is wrong, a slope may be
    negative.

    Args:
        columns: Names of numeric features; None takes all columns of numbers.
        ridge: Strength of the shrinkage to no dependence on the features, in rows, > 0.
        bias: Whether there is a bias; None: with two classes. Only two classes can have one.

    Attributes:
        temperature: 1 / a₀.
        slopes: (1 + C,) a₀, and a_j per standard deviation of each feature.
        biases: (1 + C,) b₀ and b_j; zeros without a bias.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> from calibrant import Predictions
        >>> z = torch.zeros(400, 2)
        >>> length = torch.arange(400) % 2
        >>> y = torch.cat(
        ...     [torch.zeros(200), length[200:]]
        ... ).long()  # half of the long answers are right, and no short one
        >>> data = Predictions.from_logits(z, y, features={"length": length}, unchecked_kind=True)
        >>> fitted = FeatureScaling(["length"], ridge=0.01).fit(data)
        >>> data.calibrated_by(fitted, allow_fit_rows=True).probs[-2:, 1].round(decimals=2)
        tensor([0.0000, 0.5000], dtype=torch.float64)

    References:
        Cox 1958, Two Further Applications of a Model for Binary Regression (slope and intercept); Joy et al. 2023, Sample-dependent
        Adaptive Temperature Scaling (a temperature by features of the row).
    """

    slopes: Tensor
    biases: Tensor
    center: Tensor
    spread: Tensor
    lowest: Tensor
    highest: Tensor
    names: Tensor

    def __init__(self, columns: Names | None = None, *, ridge: Positive = 1.0, bias: bool | None = None) -> None:
        super().__init__()
        self.columns = columns
        self.ridge = ridge
        self.bias = bias

    def _learned_columns(self) -> tuple[KnownColumn, ...]:
        names = from_bytes(self.names)  # which may come from a file
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("a list of names was expected")
        return tuple(map(KnownColumn, names))

    def _update_facts(self) -> None:
        super()._update_facts()
        columns, parameters = (len(self._known),), (1 + len(self._known),)
        shapes = {one.shape for one in (self.center, self.spread, self.lowest, self.highest)}
        if self.fitted and (shapes != {columns} or {self.slopes.shape, self.biases.shape} != {parameters}):
            raise ValueError("as many slopes as features were expected")

    @property
    def temperature(self) -> float:
        """1 / a₀, of a row with the mean features; NaN before ``fit``."""
        return 1 / float(self.slopes[0]) if self.fitted and float(self.slopes[0]) else math.nan

    def learned(self) -> str:
        """Return the temperature at the mean features, and their names."""
        return f"temperature={self.temperature:.4g}, features {', '.join(one.name for one in self._known) or 'none'}"

    def _fit(self, rows: RowSource) -> None:
        biased = rows.classes == 2 if self.bias is None else self.bias
        if biased and rows.classes != 2:
            raise refuse("two classes for a bias by features", f"{rows.classes}", "pass bias=False, or leave it out")
        names = self.columns if self.columns is not None else names_of(rows, numbers=True)
        if len(names) > _MOST_COLUMNS:
            raise refuse(f"at most {_MOST_COLUMNS} features", str(len(names)), "name fewer columns")
        mass, device = rows.mass, rows.device
        size = math.sqrt(float(rows.total(logit_squares)) / mass) or 1.0  # of the logits: it brings them near 1
        center = rows.total(_feature_sums, names) / mass
        spread = (rows.total(_feature_squares, names, center) / mass).sqrt()
        lowest, highest = -rows.largest(_top, names, -1.0), rows.largest(_top, names, 1.0)
        flat = spread <= 1e-9 * torch.maximum(lowest.abs(), highest.abs())  # constant but for rounding
        spread = torch.where(flat, 1.0, spread)
        hinges = _hinges(center, spread, lowest, highest)
        inputs = rows.prepared(_ScaledChunk.of, size, names, hinges)
        parts = 2 if biased else 1
        # from the uniform distribution, where the curvature is largest
        first = torch.zeros(parts * (1 + len(names)), dtype=torch.float64, device=device)
        found = fit_by_design(
            lambda theta: inputs.total(_ScaledChunk.loss_sums, theta, parts),
            first, parts=parts, ridge=self.ridge, mass=mass, unit=size,
        )  # fmt: skip
        theta = found.theta.view(parts, -1)
        self.slopes = theta[0] / size
        self.biases = theta[1].clone() if biased else torch.zeros_like(self.slopes)
        self.center, self.spread, self.lowest, self.highest = center, spread, lowest, highest
        self.names = as_bytes(list(names)).to(device)
        self._certify(found.gradient, device)

    def _transform_with(self, logits: Tensor, features: Features | None) -> Tensor:
        if features is None or not self._known:  # a row with the mean features
            return self._mapped(logits, self.slopes[0], self.biases[0])
        names = [one.name for one in self._known]
        table = _feature_table(features, names, logits.shape[0]).to(self.slopes.device)
        design = _hinges(self.center, self.spread, self.lowest, self.highest).design(table)
        return self._mapped(logits, (design @ self.slopes)[:, None], design @ self.biases)

    def _mapped(self, logits: Tensor, slope: Tensor, bias: Tensor) -> Tensor:
        """Return the map of slopes (n, 1) and biases (n,), or of one slope and one bias."""
        x = lift_excluded(logits) * slope.to(logits.dtype)
        if logits.shape[1] == 2:
            x = torch.stack([x[:, 0], x[:, 1] + bias.to(logits.dtype)], dim=1)
        return keep_excluded(x, logits)


def _hinges(center: Tensor, spread: Tensor, lowest: Tensor, highest: Tensor) -> Hinges:
    """Return one straight piece for each feature (C,), from its lowest value on the fitting rows to its highest."""
    owner = torch.arange(len(center), device=center.device)
    return Hinges(owner, lowest, highest, center - lowest, spread)


@dataclass(frozen=True)
class _ScaledChunk:
    """Logits (n, K) over their size, design (n, 1 + C), labels and weights (n,) of rows."""

    x: Tensor
    design: Tensor
    labels: Tensor
    weight: Tensor

    @classmethod
    def of(cls, chunk: Chunk, size: float, names: Sequence[str], hinges: Hinges) -> "_ScaledChunk":
        check_label_logits(chunk)
        x = centre_rows(chunk.logits) / size
        return cls(x, hinges.design(_feature_table_of(chunk, names)), chunk.labels, chunk.weights)

    def loss_sums(self, theta: Tensor, parts: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ log-loss, its gradient (P,) and Hessian (P, P); a row depends on its slope, and on its bias if ``parts`` is 2."""
        by_part = theta.view(parts, -1) @ self.design.T  # (parts, n)
        z = self.x * by_part[0][:, None]
        if parts == 2:
            z = torch.stack([z[:, 0], z[:, 1] + by_part[1]], dim=1)
        log_p = torch.log_softmax(z, dim=1)
        p, label = log_p.exp(), self.labels[:, None]
        loss = -log_p.gather(1, label)[:, 0]
        # the row's statistics: its logits less the label's, so that sums keep their digits, and whether the class is 1
        x = self.x - self.x.gather(1, label)
        mean = (p * x).sum(dim=1)
        first = [mean]
        second = [[(p * (x - mean[:, None]).square()).sum(dim=1)]]
        if parts == 2:
            q = p[:, 1]
            across = q * (x[:, 1] - mean)
            first.append(q - self.labels)
            second = [[second[0][0], across], [across, q * p[:, 0]]]
        return sums_by_design(self.design, self.weight, loss, first, second)


def _feature_table(features: Features, names: Sequence[str], rows: int) -> Tensor:
    """Return the features (n, C) in float64."""
    found = [KnownColumn(name).numbers(features, rows) for name in names]
    return torch.stack(found, dim=1) if found else torch.zeros(rows, 0, dtype=torch.float64)


def _feature_table_of(chunk: Chunk, names: Sequence[str]) -> Tensor:
    return _feature_table(chunk.features, names, len(chunk)).to(chunk.logits.device)


def _top(chunk: Chunk, names: Sequence[str], sign: float) -> Tensor:
    return (sign * _feature_table_of(chunk, names)).amax(dim=0)


def _feature_sums(chunk: Chunk, names: Sequence[str]) -> Tensor:
    return chunk.weights @ _feature_table_of(chunk, names)


def _feature_squares(chunk: Chunk, names: Sequence[str], center: Tensor) -> Tensor:
    return chunk.weights @ (_feature_table_of(chunk, names) - center).square()
