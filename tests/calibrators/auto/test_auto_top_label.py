"""AutoCalibrator(top_label=True): the decision's confidence in ten bins, from answers out of fold."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant import Predictions, load, save_predictions
from calibrant.calibrators import (
    AutoCalibrator,
    Calibrator,
    Chain,
    MultiLabelCalibrator,
    TemperatureScaling,
)
from calibrant.calibrators.auto.auto import CONSTANTS, pairs_of, with_confidence
from calibrant.calibrators.auto.cross_fitting import held_out
from calibrant.calibrators.one_vs_rest.maps import mean_bins
from calibrant.errors import InputError
from calibrant.metrics import ECE
from calibrant.rows import Chunk, MemoryRows, RowSource
from calibrant.scale import batches
from calibrant.testing import check_calibrator


def small(**settings: Any) -> AutoCalibrator:
    """Return one with a quick candidate that leaves the confidence off."""
    return AutoCalibrator(candidates=[TemperatureScaling(prior=0.02)], **settings)


class Nothing(Calibrator):
    """A candidate that changes nothing."""

    def _fit(self, rows: RowSource) -> None:
        """Learn nothing."""

    def _transform(self, logits: Tensor) -> Tensor:
        return logits


class Memory(Calibrator):
    """Certainty about the rows of the fit."""

    seen: Tensor

    def _fit(self, rows: RowSource) -> None:
        self.seen = rows.gathered().logits

    def _transform(self, logits: Tensor) -> Tensor:
        known = (logits[:, None] == self.seen).all(dim=2).any(dim=1, keepdim=True)
        return torch.where(known, 100 * logits.argsort(dim=1).argsort(dim=1), logits.float().double())


def test_the_bins_of_four_places_by_hand() -> None:
    places, p, mass = (
        torch.tensor(x).double() for x in ([0.0, 1.0, 2.0, 4.0], [0.2, 0.4, 0.5, 0.9], [1.0, 1.0, 1.0, 3.0])
    )
    edges, means = mean_bins(places, p, mass, bins=2)
    assert edges.tolist() == [3.0]
    assert means.tolist() == pytest.approx([1.1 / 3, 0.9])


def test_the_decision_gets_its_bins_value_and_the_others_their_proportions() -> None:
    log_p = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1]]).double().log()
    edge = math.log(0.7 / 0.3)
    answer = with_confidence(log_p, torch.tensor([edge]).double(), torch.logit(torch.tensor([0.52, 0.9]).double()))
    assert answer.exp().tolist() == [pytest.approx([0.52, 0.36, 0.12]), pytest.approx([0.05, 0.9, 0.05])]


def test_the_decision_stays_where_its_bins_value_is_below_the_runner_up() -> None:
    log_p = torch.tensor([[0.3, 0.5, 0.2], [0.5, 0.5, 0.0]]).double().log()
    answer = with_confidence(log_p, torch.empty(0).double(), torch.logit(torch.tensor([0.1]).double()))
    assert answer.argmax(dim=1).tolist() == [1, 0]
    # the runner-up has 3/5 of the rest: equal shares are 3/8 each
    assert answer[0].exp().tolist() == pytest.approx([0.375, 0.375, 0.25], abs=1e-6)
    assert answer[1].exp().tolist() == pytest.approx([0.5, 0.5, 0.0], abs=1e-6)


def test_pairs_keep_weights_and_groups() -> None:
    chunk = Chunk(
        torch.zeros(2, 3),
        labels=torch.tensor([0, 1]),
        weight=torch.tensor([1.0, 2.0]).double(),
        groups=torch.tensor([5, 6]),
    )
    pairs = pairs_of([(chunk, torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]).log())])
    [made] = pairs.chunks
    assert made.logits[:, 1].tolist() == pytest.approx([0.0, math.log(4)], abs=1e-6)
    assert made.labels.tolist() == [1, 0]
    assert (made.weight.tolist(), made.groups.tolist(), pairs.mass) == ([1.0, 2.0], [5, 6], 3.0)


def test_what_the_pool_leaves_too_sure_is_corrected_and_the_decision_stays() -> None:
    plain, top = (AutoCalibrator(candidates=[Nothing()], top_label=yes).fit(*drawn(240, 6)) for yes in (False, True))
    new = Predictions.from_logits(*drawn(4000, 6, seed=1))
    before, after = new.calibrated_by(plain), new.calibrated_by(top)
    assert ECE()(before) > 0.1
    assert ECE()(after) < 0.06
    assert torch.equal(before.predicted, after.predicted)
    assert after.decision is None


def test_answers_are_those_of_members_that_were_not_fitted_on_the_row() -> None:
    z, y = drawn(240, 6)
    answers = held_out([Memory()], torch.zeros(1).double(), MemoryRows.of(z, y), 5)
    pairs = pairs_of(answers).gathered()
    assert len(pairs) == len(y)
    assert not bool((pairs.logits[:, 1] > 50).any())  # it is certain of every row that it was fitted on


def test_with_few_wrong_rows_nothing_is_corrected() -> None:
    z, _ = drawn(100, 6)
    fitted = AutoCalibrator(top_label=True).fit(z, z.argmax(1))
    assert torch.equal(fitted(z), z)
    assert "bins" not in fitted.learned()


def test_the_representation_names_it() -> None:
    fitted = small(top_label=True).fit(*drawn(240, 6))
    assert "top_label=True" in repr(fitted)
    assert fitted.learned().endswith(f"top label in {CONSTANTS.bins} bins")


@pytest.mark.slow
def test_it_keeps_the_contract_of_a_calibrator() -> None:
    check_calibrator(small(top_label=True), exact=0.2)
    check_calibrator(
        AutoCalibrator(top_label=True, keep="argmax"), exact=0.2
    )  # repeated rows lie in several folds, and a bin holds few rows


def test_weights_count_as_rows_left_out_or_once() -> None:
    z, y = drawn(240, 6)
    w = (torch.arange(len(y)) % 2).double()
    weighted, kept = small(top_label=True).fit(z, y, sample_weight=w), small(top_label=True).fit(z[1::2], y[1::2])
    assert torch.equal(weighted.top_values, kept.top_values)
    heavier = small(top_label=True).fit(z, y, sample_weight=1 + w)
    assert not torch.equal(heavier.top_values, small(top_label=True).fit(z, y).top_values)


@pytest.mark.slow
def test_streamed_rows_give_the_same(tmp_path: Path) -> None:
    z, y = drawn(240, 6)
    save_predictions(tmp_path / "rows.parquet", {"all": Predictions.from_logits(z, y)})
    inside, streamed = small(top_label=True).fit(z, y), small(top_label=True).fit(batches(tmp_path / "rows.parquet"))
    torch.testing.assert_close(streamed(z), inside(z), rtol=0, atol=1e-9)


def test_many_classes_at_once_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("calibrant.calibrators.auto.auto.CONSTANTS", replace(CONSTANTS, selected=100))
    save_predictions(tmp_path / "rows.parquet", {"all": Predictions.from_logits(*drawn(240, 6))})
    with pytest.raises(InputError, match=r"at most 66 rows of 6 classes for AutoCalibrator\(top_label=True\)"):
        small(top_label=True).fit(batches(tmp_path / "rows.parquet"))


def test_files_and_states_keep_it_and_files_without_it_load(tmp_path: Path) -> None:
    z, y = drawn(240, 6)
    fitted = small(top_label=True).fit(z, y)
    fitted.save(tmp_path / "c.safetensors")
    loaded = load(tmp_path / "c.safetensors")
    assert loaded.config() == fitted.config()
    assert torch.equal(loaded(z), fitted(z))
    older = {name: value for name, value in small().fit(z, y).state_dict().items() if "top_" not in name}
    again = small()
    again.load_state_dict(older)
    assert torch.equal(again(z), small().fit(z, y)(z))


def test_in_a_chain_the_decision_is_its_own(tmp_path: Path) -> None:
    chain = Chain(TemperatureScaling(), small(top_label=True)).fit(*drawn(240, 6))
    new = Predictions.from_logits(*drawn(300, 6, seed=1)).calibrated_by(chain)
    assert new.decision is None
    assert torch.equal(new.predicted, new.logits.argmax(dim=1))
    chain.save(tmp_path / "c.safetensors")
    assert torch.equal(load(tmp_path / "c.safetensors")(new.logits), chain(new.logits))


def test_labels_of_their_own_refuse_it() -> None:
    with pytest.raises(InputError, match="which is of the top label"):
        MultiLabelCalibrator(AutoCalibrator(top_label=True))


@pytest.mark.slow
def test_onnx_answers_the_same(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    from calibrant.adapters.onnx import export

    fitted = small(top_label=True).fit(*drawn(240, 6))
    export(fitted, tmp_path / "c.onnx")
    z = drawn(50, 6, seed=2)[0].float()
    session = runtime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])
    [got] = session.run(None, {"input": z.numpy()})
    np.testing.assert_allclose(torch.softmax(torch.from_numpy(got), 1), torch.softmax(fitted(z), 1), atol=1e-6)
