"""Export of a calibrator, or of a model followed by one, to ONNX with standard operators."""

import os
import warnings

import torch
from torch import Tensor, nn

from calibrant._core.check import refuse, shown
from calibrant._core.paths import as_path, atomic_write
from calibrant.calibrators import Calibrator, MultiLabelCalibrator
from calibrant.errors import FitError, InputError, MissingExtraError

__all__ = ["export"]


def export(module: nn.Module, path: str | os.PathLike[str], *, example: Tensor | None = None) -> None:
    """Write ``module`` to ``path`` as an ONNX model with any number of rows, atomically.

    Args:
        module: A fitted calibrator, or a model that ends in one, such as ``torch.nn.Sequential(model, calibrator)``.
        path: Ends in ``.onnx``.
        example: An input batch (rows first) of the model; None for a calibrator alone, whose input is float32 logits
            (N, K). The input of the ONNX model is named "input", its output "logits"; the softmax of the output is calibrated
            (for a ``MultiLabelCalibrator`` the sigmoid).

    Raises:
        InputError: If the path does not end in .onnx, or a model comes without an example.
        NotFittedError: If a calibrator is not fitted.
        FitError: If a part cannot be exported to standard operators.
        MissingExtraError: If onnx or onnxscript is not installed.

    Examples:
        >>> import pathlib, tempfile
        >>> from calibrant.calibrators import TemperatureScaling
        >>> z, y = torch.tensor([[2.0, 0.0]] * 10), torch.tensor([0] * 8 + [1] * 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export(TemperatureScaling().fit(z, y), pathlib.Path(folder, "c.onnx"))
    """
    if not isinstance(module, nn.Module):
        raise refuse(
            "a calibrator or a module", shown(module), "pass a fitted calibrator, or nn.Sequential(model, calibrator)"
        )
    place = as_path(path)
    if place.suffix != ".onnx":
        raise refuse("a path that ends in .onnx", repr(str(place)), "rename it")
    if example is not None and (not isinstance(example, Tensor) or example.dim() < 1 or not len(example)):
        raise refuse("example as a batch of at least one row", shown(example), "pass a tensor that the model takes")
    if example is None:
        if not isinstance(module, Calibrator | MultiLabelCalibrator):
            raise InputError(f"an example input for {type(module).__name__}", "none", "pass example=batch")
        module._need_fit()
        example = torch.linspace(1, 0, 2 * int(module.classes)).reshape(2, -1)  # (2, K), or (2, L) for L labels
    program = _translate(module, example)
    foreign = sorted({entry.domain for entry in program.opset_import if entry.domain not in ("", "ai.onnx")})
    if foreign:
        raise FitError("standard ONNX operators only", f"those of {', '.join(foreign)}", "simplify the model")
    with atomic_write(path) as file:
        file.write(program.SerializeToString())


def _translate(module: nn.Module, example: Tensor) -> "onnx.ModelProto":  # type: ignore[name-defined]  # noqa: F821
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(error.name or "onnx", extra="onnx") from error
    training = module.training
    module.eval()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # internal warnings of the exporter
            # torch.export treats a batch size of 1 as a constant
            example = example if example.shape[0] > 1 else torch.cat([example, example])
            traced = torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("rows", min=1)},))
            program = torch.onnx.export(
                traced, (), dynamo=True, verbose=False, input_names=["input"], output_names=["logits"]
            )
    finally:
        module.train(training)
    assert program is not None
    return program.model_proto
