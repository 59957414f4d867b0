"""What every calibrator in ``calibrators.__all__`` must do. A new one is tested here without a line being written.

A method that cannot meet a clause is named in the clause's table of exceptions, with the reason.
"""

import copy
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from calibrant import Predictions, binning, calibrators, load
from calibrant._core.config import build
from calibrant.calibrators import Calibrator  # type: ignore[attr-defined]
from calibrant.errors import BoundWarning, CalibrantError, CalibrantWarning, InputError, NotFittedError

FAMILY = [name for name in calibrators.__all__ if issubclass(getattr(calibrators, name), Calibrator)]

# How to make one where the constructor needs arguments; all others are made without.
MAKE: dict[str, Callable[[], Calibrator]] = {
    "Chain": lambda: calibrators.Chain(calibrators.Identity(), calibrators.TemperatureScaling()),
    "FocalCalibration": lambda: calibrators.FocalCalibration(1.0),
}
# Methods that split the data by row position, so that weights are not repetitions and order matters a little.
SPLITS_ROWS = {"AutoCalibrator"}
CLASSES = 4


def make(name: str) -> Calibrator:
    return MAKE.get(name, getattr(calibrators, name))()


def sample(rows: int = 240, classes: int = CLASSES, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return over-confident logits (float64) with labels drawn from softmax(logits / 2)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(logits / 2, dim=1), 1, generator=generator)[:, 0]
    return logits, labels


def quiet_fit(calibrator: Calibrator, logits: Tensor, labels: Tensor, **extra: Tensor) -> Calibrator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        return calibrator.fit(logits, labels, **extra)


def refused(calibrator: Calibrator, logits: Tensor, labels: Tensor, *, naming: str, **extra: Tensor) -> bool:
    """Say whether ``fit`` refuses the data, which it may if the message names ``naming``; fits otherwise."""
    try:
        quiet_fit(calibrator, logits, labels, **extra)
    except CalibrantError as error:
        if naming not in str(error).replace("−", "-"):
            raise
        return True
    return False


def probs(logits: Tensor) -> Tensor:
    return torch.softmax(logits.double(), dim=1)


@pytest.fixture(params=FAMILY)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fitted(name: str) -> Calibrator:
    return quiet_fit(make(name), *sample())


def test_an_unfitted_one_refuses_to_answer_and_to_be_saved(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="call fit first"):
        make(name)(sample()[0])
    with pytest.raises(NotFittedError, match="call fit first"):
        make(name).save(tmp_path / "c.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_another_number_of_classes_or_kind_of_input_is_refused(fitted: Calibrator) -> None:
    for wrong in (torch.zeros(3, CLASSES + 1), torch.zeros(CLASSES)):
        with pytest.raises(InputError, match=rf"\(N, {CLASSES}\) as in fit"):
            fitted(wrong)
    with pytest.raises(InputError, match=r"floating dtype, got torch\.int64"):
        fitted(torch.zeros(2, CLASSES, dtype=torch.int64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda z, y: (z.masked_fill(z > 8, math.nan), y), "NaN"),
        (lambda z, y: (z.masked_fill(z > 8, math.inf), y), "finite logits"),
        (lambda z, y: (z.long(), y), "floating"),
        (lambda z, y: (z[:, :1], y * 0), "K ≥ 2"),
        (lambda z, y: (z[:0], y[:0]), "empty"),
        (lambda z, y: (probs(z), y), "probabilities"),
        (lambda z, y: (z, y + 1), "labels in"),
        (lambda z, y: (z, y[:, None]), "labels of shape"),
        (lambda z, y: (z, y[1:]), "labels of shape"),
        (lambda z, y: (z, y.double()), "integer labels"),
    ],
    ids=["nan", "inf", "integers", "one-class", "empty", "probs", "label-K", "label-2d", "short", "float-labels"],
)
def test_bad_data_are_refused(name: str, change: Callable[..., tuple[Tensor, Tensor]], message: str) -> None:
    calibrator = make(name)
    with pytest.raises(InputError, match=message):
        calibrator.fit(*change(*sample()))
    assert not calibrator.fitted


def test_bad_weights_are_refused(name: str) -> None:
    logits, labels = sample()
    for weight in (torch.zeros(240), -torch.ones(240), torch.ones(239), torch.full((240,), math.nan)):
        with pytest.raises(InputError, match="weight"):
            make(name).fit(logits, labels, sample_weight=weight)


def test_inputs_are_left_as_they_are(name: str) -> None:
    logits, labels = sample()
    weight = torch.ones(240, dtype=torch.float64)
    kept = [values.clone() for values in (logits, labels, weight)]
    calibrator = quiet_fit(make(name), logits, labels)
    calibrator(logits)
    refused(make(name), logits, labels, sample_weight=weight, naming="sample_weight")
    assert all(torch.equal(now, then) for now, then in zip((logits, labels, weight), kept, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_dtype_is_kept(fitted: Calibrator, dtype: torch.dtype) -> None:
    logits = sample(50, seed=1)[0]
    answer = fitted(logits.to(dtype))
    assert answer.dtype == dtype
    assert answer.shape == logits.shape
    tolerance = {torch.float16: 0.02, torch.bfloat16: 0.15, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    rounded = probs(fitted(logits.to(dtype).double()))  # what rounding the input alone would change is not counted
    assert float((probs(answer) - rounded).abs().max()) < tolerance


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_it_fits_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    logits, labels = sample()
    narrow = quiet_fit(make(name), logits.to(dtype), labels)
    wide = quiet_fit(make(name), logits.to(dtype).double(), labels)
    fresh = sample(50, seed=1)[0]
    torch.testing.assert_close(probs(narrow(fresh)), probs(wide(fresh)), rtol=0, atol=1e-4)


def test_preserves_argmax_is_declared_and_true(name: str, fitted: Calibrator) -> None:
    assert isinstance(fitted.preserves_argmax, bool)
    assert isinstance(fitted.top_label, bool)
    if not fitted.preserves_argmax:
        return
    base = sample(2000, seed=2)[0]
    for logits in (base, base * 100, base * 1e-3, base.half(), base.float() * 40):
        answer = fitted(logits)
        chosen = answer.gather(1, logits.argmax(dim=1, keepdim=True))[:, 0]
        assert torch.equal(chosen, answer.amax(dim=1))


def test_copies_and_state_dicts_answer_the_same_to_the_bit(name: str, fitted: Calibrator) -> None:
    logits = sample(50, seed=4)[0]
    expected = fitted(logits)
    assert torch.equal(copy.deepcopy(fitted)(logits), expected)
    other = make(name)
    other.load_state_dict(fitted.state_dict())
    assert other.fitted
    assert torch.equal(other(logits), expected)
    refitted = quiet_fit(make(name), *sample(seed=5))
    refitted.load_state_dict(fitted.state_dict())
    assert torch.equal(refitted(logits), expected)


def test_saving_and_loading_changes_nothing(fitted: Calibrator, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    fitted.save(path)
    loaded = load(path)
    logits = sample(50, seed=4)[0]
    assert type(loaded) is type(fitted)
    assert repr(loaded) == repr(fitted)
    assert loaded.top_label == fitted.top_label
    assert loaded.preserves_argmax == fitted.preserves_argmax
    assert torch.equal(loaded.fit_rows, fitted.fit_rows)
    assert torch.equal(loaded(logits), fitted(logits))
    assert [file.name for file in tmp_path.iterdir()] == ["c.safetensors"]


def test_the_configuration_is_plain_and_rebuilds_it(name: str, fitted: Calibrator) -> None:
    table = json.loads(json.dumps({"type": name, **fitted.config()}))
    again = build(table, families=[calibrators, binning])
    assert again.config() == fitted.config()
    assert repr(again) == repr(make(name))


def hostile_files(path: Path) -> dict[str, Callable[[], None]]:
    """Return ways to spoil the saved calibrator at ``path``, each of which writes the file anew."""
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    arrays = {key: value.clone() for key, value in load_file(path).items()}  # load_file maps the file into memory
    whole = path.read_bytes()

    def write(changed: dict[str, Tensor], **other: str) -> Callable[[], None]:
        return lambda: save_file(changed, path, metadata={**metadata, **other})

    without = {key: value for key, value in arrays.items() if key != "classes"}
    return {
        "truncated": lambda: path.write_bytes(whole[:-8]) and None,
        "random": lambda: path.write_bytes(bytes(range(256)) * 8) and None,
        "empty": lambda: path.write_bytes(b"") and None,
        "another class": write(arrays, type="os.system"),
        "no class": write(arrays, type=""),
        "strange argument": write(arrays, config='{"no_such_argument": 1}'),
        "no object": write(arrays, config="[1, 2]"),
        "deep nesting": write(arrays, config="[" * 100_000),
        "another format": write(arrays, format="something-else"),
        "a missing buffer": write(without),
        "no rows": write({key: value for key, value in arrays.items() if key != "fit_rows"}),
        "an extra buffer": write({**arrays, "extra": torch.zeros(3)}),
        "negative classes": write({**arrays, "classes": torch.tensor(-3)}),
        "endless classes": write({**arrays, "classes": torch.tensor(1 << 50)}),
        "floating rows": write({**arrays, "fit_rows": torch.zeros(3)}),
    }


def test_hostile_files_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    quiet_fit(make(name), *sample()).save(path)
    for what, spoil in hostile_files(path).items():
        spoil()
        try:
            with pytest.raises(CalibrantError, match=";"):  # expected, got; remedy
                load(path)
        except pytest.fail.Exception:
            pytest.fail(f"a file with {what} was loaded")


def test_spoiled_learned_values_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    quiet_fit(make(name), *sample()).save(path)
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    arrays = {key: value.clone() for key, value in load_file(path).items()}  # load_file maps the file into memory
    for key, value in arrays.items():
        if not value.is_floating_point() or not value.numel():
            continue
        save_file({**arrays, key: torch.full_like(value, math.nan)}, path, metadata=metadata)
        with pytest.raises(CalibrantError):
            load(path)


def test_weights_count_as_repetitions_or_are_refused(name: str) -> None:
    logits, labels = sample()
    times = torch.arange(240) % 3
    weighted = make(name)
    if refused(weighted, logits, labels, sample_weight=times.double(), naming="sample_weight"):
        return
    if name in SPLITS_ROWS:
        weighted = quiet_fit(make(name), logits, labels, sample_weight=torch.ones(240))
        repeated = quiet_fit(make(name), logits, labels)
    else:
        repeated = quiet_fit(make(name), logits.repeat_interleave(times, dim=0), labels.repeat_interleave(times))
    fresh = sample(50, seed=6)[0]
    torch.testing.assert_close(probs(weighted(fresh)), probs(repeated(fresh)), rtol=0, atol=2e-4)


def test_the_order_of_rows_does_not_matter(name: str) -> None:
    logits, labels = sample()
    order = torch.randperm(240, generator=torch.Generator().manual_seed(7))
    one, other = quiet_fit(make(name), logits, labels), quiet_fit(make(name), logits[order], labels[order])
    fresh = sample(50, seed=6)[0]
    tolerance = 0.05 if name in SPLITS_ROWS else 1e-5
    torch.testing.assert_close(probs(one(fresh)), probs(other(fresh)), rtol=0, atol=tolerance)


def test_refitting_forgets_the_first_fit(name: str) -> None:
    refitted = quiet_fit(quiet_fit(make(name), *sample(300, 3, seed=8)), *sample())
    fresh = sample(50, seed=6)[0]
    torch.testing.assert_close(
        probs(refitted(fresh)), probs(quiet_fit(make(name), *sample())(fresh)), rtol=0, atol=1e-4
    )


def test_excluded_classes_keep_probability_zero_or_are_refused(name: str) -> None:
    logits, labels = sample()
    logits[::2, 3] = -math.inf
    labels[labels == 3] = 0
    calibrator = make(name)
    if refused(calibrator, logits, labels, naming="-inf"):
        return
    answer = calibrator(logits)
    assert not bool(torch.isnan(answer).any())
    assert bool(torch.isfinite(answer.amax(dim=1)).all())
    if calibrator.preserves_argmax and not calibrator.top_label:
        assert float(probs(answer)[::2, 3].max()) < 0.25


@pytest.mark.parametrize("kind", ["all right", "all wrong", "one class only", "constant rows", "huge", "two rows"])
def test_degenerate_data_end_in_numbers_or_in_a_clear_refusal(name: str, kind: str) -> None:
    logits, labels = sample()
    if kind == "all right":
        labels = logits.argmax(dim=1)
    elif kind == "all wrong":
        labels = logits.argmin(dim=1)
    elif kind == "one class only":
        labels = torch.zeros_like(labels)
    elif kind == "constant rows":
        logits = torch.ones_like(logits)
    elif kind == "huge":
        logits = logits * 1e5
    else:
        logits, labels = logits[:2], labels[:2]
    calibrator = make(name)
    if refused(calibrator, logits, labels, naming=";"):
        return
    answer = calibrator(sample(50, seed=9)[0])
    assert not bool(torch.isnan(answer).any())
    assert bool(torch.isfinite(answer.amax(dim=1)).all())


def test_two_classes_work(name: str) -> None:
    logits, labels = sample(240, 2)
    calibrator = quiet_fit(make(name), logits, labels)
    answer = calibrator(sample(50, 2, seed=9)[0])
    assert answer.shape == (50, 2)
    assert not bool(torch.isnan(answer).any())


def test_the_repr_shows_configuration_and_what_was_learned(name: str, fitted: Calibrator) -> None:
    assert repr(make(name)).startswith(f"{name}(")
    assert repr(fitted).startswith(f"{name}(")


def test_arrays_lists_and_tensors_are_taken(name: str) -> None:
    logits, labels = sample(120)
    one = quiet_fit(make(name), logits, labels)
    other = make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        other.fit(logits.numpy(), labels.tolist())
    assert torch.equal(one(logits), other(logits))


def test_it_calibrates_predictions_and_is_fenced_off_from_its_own_data(fitted: Calibrator) -> None:
    data = Predictions.from_logits(*sample())
    with pytest.raises(InputError, match="allow_fit_rows"):
        data.calibrated_by(fitted)
    inside = data.calibrated_by(fitted, allow_fit_rows=True)
    assert len(inside) == 240
    fresh = Predictions.from_logits(*sample(seed=10))
    after = fresh.calibrated_by(fitted)
    if fitted.preserves_argmax or fitted.top_label:
        assert torch.equal(after.predicted, fresh.predicted)


def test_a_bound_is_reported_as_a_warning_of_ours() -> None:
    logits = sample()[0]
    with pytest.warns(BoundWarning):
        calibrators.TemperatureScaling().fit(logits, logits.argmax(dim=1))
