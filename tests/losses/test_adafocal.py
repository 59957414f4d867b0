"""AdaFocal: the update rule over many epochs, resuming, and several processes."""

from typing import Any

import numpy as np
import pytest
import torch

from calibrant import Predictions, losses
from calibrant.errors import InputError
from calibrant.losses import adafocal


def followed(logits: np.ndarray, labels: np.ndarray, rate: float, bins: int) -> tuple[list[Any], list[Any]]:
    """Return γ and edges after each epoch, from the validation logits (epochs, N, K) alone; shares nothing with the loss."""
    gamma, all_gammas, all_edges = np.ones(bins), [], []
    for z in logits.astype(np.float64):
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        top, right = p.max(1), z.argmax(1) == labels
        edges = np.interp(np.linspace(0, len(top), bins + 1), np.arange(len(top)), np.sort(top))
        for b in range(bins):
            inside = (top > edges[b]) & (top <= edges[b + 1])
            error = top[inside].mean() - right[inside].mean() if inside.any() else 0.0
            gamma[b] *= np.exp(rate * error if gamma[b] > 0 else -rate * error)
            if abs(gamma[b]) < 0.2:
                gamma[b] = -0.2 if gamma[b] > 0 else 0.2
            gamma[b] = min(max(gamma[b], -2.0), 20.0)
        all_gammas.append(gamma.copy())
        all_edges.append(edges)
    return all_gammas, all_edges


def record() -> tuple[np.ndarray, np.ndarray]:
    """Return validation logits (24, 200, 10) of epochs, first under-confident and then over-confident, and labels (200,)."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 10))
    labels = (2 * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)  # calibrated at twice these logits
    sharpness = np.r_[np.linspace(0.5, 2, 8), np.linspace(2, 8, 8), np.linspace(4, 0.5, 8)]
    return (sharpness[:, None, None] * logits).astype(np.float32), labels


def test_stored_look_up_and_loss(vectors: dict[str, dict[str, Any]]) -> None:
    entry = vectors["adafocal_bin_lookup"]
    loss = losses.AdaFocalLoss(3)
    loss.edges.copy_(torch.tensor(entry["inputs"]["edges"], dtype=torch.float64))
    loss.gammas.copy_(torch.tensor(entry["inputs"]["gammas"], dtype=torch.float64))
    for dtype in (torch.float32, torch.float64):
        gamma = loss.gamma_of(torch.tensor(entry["inputs"]["p_true"], dtype=dtype))
        assert torch.equal(gamma, torch.tensor(entry["expected"]["gamma"], dtype=dtype))
    entry = vectors["adafocal_loss_per_sample"]
    given = entry["inputs"]
    for logits, label, gamma, expected in zip(
        given["logits"], given["target"], given["gammas"], entry["expected"]["loss"], strict=True
    ):
        loss = losses.AdaFocalLoss(gamma_init=gamma)
        value = loss(torch.tensor([logits], dtype=torch.float64), torch.tensor([label]))
        assert np.isclose(value.item(), expected, rtol=entry["tolerance"]["rel"])


def test_updates_follow_the_formula_and_resume() -> None:
    all_logits, labels = record()
    gammas, edges = followed(all_logits, labels, rate=4.0, bins=10)
    assert (np.diff(np.sign(gammas), axis=0) != 0).any()  # bins that switch,
    assert {20.0, -2.0} <= set(np.ravel(gammas))  # and bins that are clipped
    loss = losses.AdaFocalLoss(10, 4.0)
    for epoch, logits in enumerate(all_logits):
        loss.update(Predictions.from_logits(logits, labels))
        # confidences of float32 logits are good to about 1e-8
        assert np.allclose(loss.gammas, gammas[epoch], rtol=1e-6)
        assert np.allclose(loss.edges, edges[epoch], rtol=1e-7)
        if epoch == 8:
            resumed = losses.AdaFocalLoss(10, 4.0)
            resumed.load_state_dict(loss.state_dict())
            loss = resumed
    assert repr(loss) == "AdaFocalLoss(bins=10, rate=4.0, updates=24)"


def test_an_empty_bin_keeps_its_gamma() -> None:
    loss = losses.AdaFocalLoss(4, switch=0.25)
    assert loss.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    loss.gammas.copy_(torch.tensor([1.0, 0.25, -0.25, -1.0]))  # below 1/4 it would switch its sign
    # the interpolated edges of three equal confidences are equal: no bin holds anything
    loss.update(Predictions.from_logits([[2.0, 0.0]] * 3, [0, 0, 1]))
    assert loss.gammas.tolist() == [1, 0.25, -0.25, -1]
    assert int(loss.updates) == 1


def test_what_has_no_labelled_rows_is_refused() -> None:
    data = Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    assert [len(one) for one in data[:0].statistics] == [0] * 4
    for wrong, got in ((data[:0], "no rows"), (data.logits, r"a Tensor of shape \(2, 2\)")):
        with pytest.raises(InputError, match=f"Predictions with at least one labelled row, got {got}"):
            losses.AdaFocalLoss().update(wrong)  # type: ignore[arg-type]


def test_all_processes_update_from_the_rows_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # that each process gets all parts: tests/adapters, in two processes
    logits, labels = record()
    data = Predictions.from_logits(logits[3], labels)
    parts = [(part.confidence, part.correct.double()) for part in (data[: len(data) // 3], data[len(data) // 3 :])]
    alone, shared = losses.AdaFocalLoss(4, 2.0), losses.AdaFocalLoss(4, 2.0)
    alone.update(data)
    monkeypatch.setattr(adafocal, "of_all_processes", lambda part: parts)
    shared.update(data[: len(data) // 3])
    for name, value in alone.state_dict().items():
        assert torch.equal(shared.state_dict()[name], value), name


def test_a_training_without_an_update_is_refused_at_its_end() -> None:
    loss, remedy = losses.AdaFocalLoss(), "update it after each epoch"
    with pytest.raises(InputError, match=f"got no call in the whole training run; {remedy}"):
        adafocal.require_update(loss, remedy)
    loss.update(Predictions.from_logits([[2.0, 0.0]] * 3, [0, 0, 1]))
    for updated in (loss, losses.FocalLoss(2.0)):  # which has no update
        adafocal.require_update(updated, remedy)


def test_half_precision_of_the_model_does_not_round_gamma() -> None:
    loss = losses.AdaFocalLoss(2)
    loss.gammas.fill_(1.0001)
    assert torch.nn.Sequential(torch.nn.Linear(2, 2), loss).to(torch.bfloat16)[1].gammas.tolist() == [1.0001, 1.0001]
    assert loss.edges.dtype == torch.float64
