"""The candidates that an ``AutoCalibrator`` tries."""

from collections.abc import Mapping, Sequence

from calibrant import binning
from calibrant._core.check import shown as described
from calibrant._core.config import build
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators.beta import BetaCalibration
from calibrant.calibrators.bias_scaling import BiasScaling
from calibrant.calibrators.boosted_scaling import BoostedScaling
from calibrant.calibrators.centred_isotonic import CentredIsotonic
from calibrant.calibrators.chain import Chain
from calibrant.calibrators.ensemble_temperature import EnsembleTemperatureScaling
from calibrant.calibrators.focal_temperature import FocalTemperatureScaling
from calibrant.calibrators.group_scaling import GroupScaling
from calibrant.calibrators.kernel_scaling import KernelScaling
from calibrant.calibrators.matrix import MatrixScaling
from calibrant.calibrators.spline import SplineCalibration
from calibrant.calibrators.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.calibrators.vector import VectorScaling
from calibrant.errors import InputError

PRIOR = 0.5  # standard deviation of log T
_GAMMAS = (-0.9, 5.0)  # the ends between which the focal exponent is sought
_MATRIX_CLASSES = 10  # beyond this many, a matrix of raw logits takes longer than all other candidates together
_FEW_CLASSES = 20  # up to this many, the structured matrix is cheap, and never behind the structured vector
# rows · K², and rows · K, up to which cross-fitting a matrix, and one curve a class, take about half a minute of one core
_MATRIX_WORK, _ISOTONIC_WORK = 5e8, 1e7
_KERNEL_WORK = 2e6  # rows · K up to which a kernel machine takes as long
# beyond 20 classes: with fewer rows a class, curves of few positive rows were far behind on every set
_ROWS_A_CURVE = 100


def usual(keep_argmax: bool) -> list[Calibrator]:
    """Return the candidates that did best together on the half of the real sets that fixed the constants."""

    def focal() -> Calibrator:
        return FocalTemperatureScaling(gammas=_GAMMAS, search="continuous", prior=PRIOR)

    if keep_argmax:
        return [EnsembleTemperatureScaling(prior=PRIOR), focal()]
    return [
        EnsembleTemperatureScaling(prior=PRIOR),
        focal(),
        Chain(focal(), StructuredVectorScaling(prior=PRIOR)),
        Chain(focal(), StructuredMatrixScaling(strength=0.2, prior=PRIOR)),
        Chain(focal(), BiasScaling()),
        Chain(focal(), BiasScaling(), KernelScaling()),
        VectorScaling(prior=PRIOR),
        MatrixScaling(ridge=20.0, prior=PRIOR),
        CentredIsotonic(),
        Chain(CentredIsotonic(), StructuredMatrixScaling(strength=0.2, prior=PRIOR)),
        BetaCalibration(),
        SplineCalibration(),
    ]


def as_calibrator(one: object) -> Calibrator:
    """Return the calibrator that is given, or that a configuration describes.

    Raises:
        InputError: If it is neither.
    """
    if isinstance(one, Calibrator):
        return one
    from calibrant import calibrators as family

    made = build(one, families=[family, binning]) if isinstance(one, Mapping) else one
    if not isinstance(made, Calibrator):
        raise InputError(
            f"expected calibrators such as TemperatureScaling() as candidates, got {described(one)}; pass a list of instances, or of "
            "configurations such as {'type': 'TemperatureScaling'}"
        )
    return made


def by_features(columns: Sequence[str] | None) -> list[Calibrator]:
    """Return the candidates that go by feature columns; None stands for all columns."""
    return [GroupScaling(columns), BoostedScaling(columns)]


def suits(member: Calibrator, *, rows: int, classes: int, compared: int) -> bool:
    """Return whether one of the ``usual`` candidates is for so many classes, and worth its time.

    Args:
        member: The candidate.
        rows: How many there are to fit on.
        classes: K.
        compared: The most rows that candidates are compared on.
    """
    first, last = (member.parts()[0], member.parts()[-1]) if isinstance(member, Chain) else (member, member)
    if isinstance(last, BetaCalibration | SplineCalibration):
        return classes == 2
    if isinstance(last, BiasScaling):
        return classes <= _FEW_CLASSES
    if isinstance(last, KernelScaling):
        return classes <= _FEW_CLASSES and rows * classes <= _KERNEL_WORK
    if isinstance(last, MatrixScaling):
        return classes <= _MATRIX_CLASSES
    if isinstance(last, StructuredMatrixScaling) and compared * classes**2 > _MATRIX_WORK:
        return False
    if isinstance(first, CentredIsotonic) and classes > _FEW_CLASSES:
        return compared >= _ROWS_A_CURVE * classes and compared * classes <= _ISOTONIC_WORK
    return not isinstance(last, StructuredVectorScaling) or classes > _FEW_CLASSES
