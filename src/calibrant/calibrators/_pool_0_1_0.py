"""The candidates of an ``AutoCalibrator`` of version 0.1.0, whose files do not name them: never changed again."""

from typing import Any

_PRIOR = 0.5
_ENSEMBLE = {"type": "EnsembleTemperatureScaling", "prior": _PRIOR}
_FOCAL = {"type": "FocalTemperatureScaling", "gammas": [-0.9, 5.0], "search": "continuous", "prior": _PRIOR}
_MATRIX = {"type": "StructuredMatrixScaling", "strength": 0.2, "prior": _PRIOR}


def _chain(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Chain", "stages": list(stages)}


CANDIDATES: dict[bool, list[dict[str, Any]]] = {
    True: [_ENSEMBLE, _FOCAL],
    False: [
        _ENSEMBLE,
        _FOCAL,
        _chain(_FOCAL, {"type": "StructuredVectorScaling", "prior": _PRIOR}),
        _chain(_FOCAL, _MATRIX),
        {"type": "VectorScaling", "prior": _PRIOR},
        {"type": "MatrixScaling", "ridge": 20.0, "prior": _PRIOR},
        {"type": "CentredIsotonic"},
        _chain({"type": "CentredIsotonic"}, _MATRIX),
        {"type": "BetaCalibration"},
        {"type": "SplineCalibration"},
    ],
}
