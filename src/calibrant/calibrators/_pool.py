"""The candidates that an ``AutoCalibrator`` tries."""

from collections.abc import Mapping, Sequence

from calibrant import binning
from calibrant._check import shown as described
from calibrant._plain import build
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
