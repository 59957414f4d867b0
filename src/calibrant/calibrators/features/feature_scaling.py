"""A temperature, and for two classes a bias, that vary linearly with numeric features of the row."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from calibrant._core.check import refuse
from calibrant._core.constraints import Positive
from calibrant.calibrators.affine.fit import centre_rows, keep_excluded, lift_excluded, logit_squares
from calibrant.calibrators.base import ByFeatures, Certified
from calibrant.calibrators.chunks import check_label_logits
from calibrant.calibrators.convex import convex_fit
from calibrant.calibrators.features.columns import KnownColumn, check_column_names, from_buffer, to_buffer
from calibrant.data.record import Features
from calibrant.rows import RowSource

_MOST_COLUMNS = 100
# rows of prior on the slope and the bias of the mean row, as in PlattScaling: it keeps separable data finite
_SETTLES = 1e-3


class FeatureScaling(Certified, ByFeatures):
    """softmax(s(f) · z + e(f) · 1[class 1]): slope s = a₀ + Σ a_j f_j and bias e = b₀ + Σ b_j f_j by numeric features f of a row.

    With two classes it is a logistic regression of the label on the log-odds, the features and their products: several scores of
    one answer, such as the mean log-probability and the length of a language model's, become one probability. With more
    classes each row has a temperature of its own, 1 / s. Features are standardised on the fitting rows and held
    within the range they had there. ridge / N · Σ (a_j² + b_j²) is added to the mean log-loss. The fit is convex and ends with a
    gradient certificate. Where the features say that the model's order is wrong, a slope may be negative.

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

    def __init__(
        self, columns: Sequence[str] | None = None, *, ridge: Positive = 1.0, bias: bool | None = None
    ) -> None:
        super().__init__()
        self.columns = check_column_names(columns)
        self.ridge = ridge
        self.bias = bias

    def _learned_columns(self) -> tuple[KnownColumn, ...]:
        return from_buffer(self.names)

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
        chunk, device = rows.gathered(why="FeatureScaling"), rows.device
        check_label_logits(chunk)
        numbers = sorted(name for name, column in chunk.features.items() if isinstance(column, Tensor))
        known = [KnownColumn(name) for name in (numbers if self.columns is None else self.columns)]
        if len(known) > _MOST_COLUMNS:
            raise refuse(f"at most {_MOST_COLUMNS} features", str(len(known)), "name fewer columns")
        table = _table(known, chunk.features, len(chunk)).to(device)
        mass, weights = rows.mass, chunk.row_weights
        self.center = weights @ table / mass
        spread = (weights @ (table - self.center).square() / mass).sqrt()
        self.lowest, self.highest = table.amin(dim=0), table.amax(dim=0)
        flat = spread <= 1e-9 * torch.maximum(self.lowest.abs(), self.highest.abs())  # constant but for rounding
        self.spread = torch.where(flat, 1.0, spread)
        size = math.sqrt(float(logit_squares(chunk)) / mass) or 1.0  # of the logits: it brings them near 1
        x, design, label = centre_rows(chunk.logits) / size, self._design(table), chunk.labels[:, None]
        parts, start = (2 if biased else 1), torch.zeros(2 if biased else 1, design.shape[1], dtype=torch.float64)
        settled, strength = start.clone(), torch.full_like(start, self.ridge)
        settled[0, 0], strength[:, 0] = size, _SETTLES  # the slope that changes nothing

        def loss(theta: Tensor) -> Tensor:
            by_row = theta.view(parts, -1) @ design.T
            z = x * by_row[0][:, None]
            if biased:
                z = torch.stack([z[:, 0], z[:, 1] + by_row[1]], dim=1)
            fit = -weights @ torch.log_softmax(z, dim=1).gather(1, label)[:, 0]
            return (fit + (strength * (theta.view(parts, -1) - settled).square()).sum()) / mass

        # from the uniform distribution, where the curvature is largest
        theta, gradient = convex_fit(loss, start.view(-1).to(device))
        found = theta.view(parts, -1)
        self.slopes = found[0] / size
        self.biases = found[1].clone() if biased else torch.zeros_like(self.slopes)
        self.names = to_buffer(known).to(device)
        self._certify(gradient, device)

    def _transform_with(self, logits: Tensor, features: Features | None) -> Tensor:
        known = self._known if features is not None else ()
        table = _table(known, {} if features is None else features, logits.shape[0]).to(self.slopes.device)
        design = self._design(table) if known else table.new_ones(logits.shape[0], 1)
        slope, bias = (design @ part[: design.shape[1]] for part in (self.slopes, self.biases))
        x = lift_excluded(logits) * slope[:, None].to(logits.dtype)
        if logits.shape[1] == 2:
            x = torch.stack([x[:, 0], x[:, 1] + bias.to(logits.dtype)], dim=1)
        return keep_excluded(x, logits)

    def _design(self, table: Tensor) -> Tensor:
        """Return (n, 1 + C): ones, and the standardised features (n, C), held within the range of the fit."""
        held = torch.minimum(torch.maximum(table, self.lowest), self.highest)
        return torch.cat([table.new_ones(len(table), 1), (held - self.center) / self.spread], dim=1)


def _table(known: Sequence[KnownColumn], features: Features, rows: int) -> Tensor:
    """Return the features (n, C) in float64."""
    found = [one.numbers(features, rows) for one in known]
    return torch.stack(found, dim=1) if found else torch.zeros(rows, 0, dtype=torch.float64)
