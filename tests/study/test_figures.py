"""Figures of studies as numbers: each kind against the store that it was read from."""

import math
from dataclasses import replace

import pytest
import torch
from tests.conftest import needs
from tests.study.samples import study_text

from calibrant.calibrators import HistogramBinning, TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, ood_auroc
from calibrant.study import (
    Store,
    Study,
    collect,
    load_study,
)
from calibrant.study.figures import Drawing, drawings, value_at
from calibrant.study.measures import Measured, ignore_bound_warnings
from calibrant.study.recipe import FigureSpec
from calibrant.study.run import run_study

pytestmark = [*needs("lightning"), pytest.mark.slow]  # twenty small trainings stand behind them

LOSSES = {
    "CE": '"CrossEntropyLoss"',
    "Smooth": '"LabelSmoothingLoss", smoothing = 0.1',
    "Focal": '"FocalLoss", gamma = 3.0',
    "Inverse": '"InverseFocalLoss", gamma = 1.0',
    "Ada": '"AdaFocalLoss"',
}
TEXT = study_text(
    LOSSES,
    data='folds = 2, train = 60, validation = 80, ood = ["gaussian-noise"]',
    training="epochs = 4, batch = 20, lr = 0.05, measure_every = 2",
)
Ran = tuple[Study, Store, list[Measured]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("figures")
    (folder / "small.toml").write_text(TEXT)
    study, store = load_study(folder / "small.toml"), Store(folder / "runs")
    list(run_study(study, store, accelerator="cpu"))
    return study, store, collect(study, store)


def draw(ran: Ran, kind: str, **fields: object) -> Drawing:
    study, _, measured = ran
    spec = FigureSpec("name", "title", kind, "a source", **fields)
    (drawing,) = drawings(replace(study, figures=(spec,)), measured)
    return drawing


def runs_of(ran: Ran, objective: str) -> list[Measured]:
    return [item for item in ran[2] if item.objective == objective]


def test_a_trajectory_is_the_mean_over_folds_and_seeds_with_its_range(ran: Ran) -> None:
    drawing = draw(ran, "trajectory", panels=(("test.ece",), ("train.nll", "train.nll_wrong")), objectives=("CE",))
    first, second = drawing.panels
    by_seed = []
    for run in runs_of(ran, "CE"):
        folds = [ran[1].load(recipe).trajectory for recipe in run.recipes]
        by_seed.append([(a["test"]["ece"] + b["test"]["ece"]) / 2 for a, b in zip(*folds, strict=True)])
    line = first.lines[0]
    assert (line.label, line.x, first.percent) == ("CE", [2.0, 4.0], True)
    assert line.y == pytest.approx([(a + b) / 2 for a, b in zip(*by_seed, strict=True)])
    assert line.low == pytest.approx([min(pair) for pair in zip(*by_seed, strict=True)])
    assert line.high == pytest.approx([max(pair) for pair in zip(*by_seed, strict=True)])
    assert [line.label for line in second.lines] == ["log-loss", "log-loss where wrong"]
    assert "a source" in drawing.caption
    assert "2 seeds" in drawing.caption


def test_what_a_trajectory_lacks_is_no_number() -> None:
    assert math.isnan(value_at({"test": {"nll_wrong": None}}, "test.nll_wrong"))
    assert math.isnan(value_at({"test": {}}, "test.optimal_ece"))
    assert math.isnan(value_at({"loss_state": {"gammas": [1.0]}}, "loss_state.gammas.3"))
    assert value_at({"loss_state": {"gammas": [1.0, 2.5]}}, "loss_state.gammas.1") == 2.5


def test_a_sweep_starts_at_cross_entropy_and_goes_along_the_strength(ran: Ran) -> None:
    entries = (("LabelSmoothingLoss", "smoothing"), ("FocalLoss", "gamma"))
    smooth, focal = draw(ran, "sweep", sweep=entries, panels=(("ece", "ece_optimal"),)).panels
    assert smooth.ticks == {0.0: "0", 1.0: ".1"}
    assert focal.ticks == {0.0: "0", 1.0: "3"}
    values = [[run.value("ece") for run in runs_of(ran, name)] for name in ("CE", "Smooth")]
    assert smooth.lines[0].y == pytest.approx([sum(v) / 2 for v in values])
    assert smooth.lines[0].low == pytest.approx([min(v) for v in values])
    assert all(best <= raw for best, raw in zip(smooth.lines[1].y, smooth.lines[0].y, strict=True))


def test_focal_and_inverse_focal_share_an_axis_through_cross_entropy(ran: Ran) -> None:
    entries = (("FocalLoss", "gamma", "-"), ("InverseFocalLoss", "gamma"))
    (panel,) = draw(ran, "sweep", sweep=entries, panels=(("temperature",),)).panels
    assert list(panel.ticks.values()) == ["−3", "0", "1"]
    wanted = [sum(r.value("temperature") for r in runs_of(ran, name)) / 2 for name in ("Focal", "CE", "Inverse")]
    assert panel.lines[0].y == pytest.approx(wanted)


def test_the_best_strength_is_chosen_on_validation_data_for_each_size(ran: Ran) -> None:
    def at(size: int, items: list[Measured]) -> list[Measured]:
        return [replace(i, recipes=tuple(replace(r, data={**r.data, "train": size}) for r in i.recipes)) for i in items]

    study, _, _ = ran
    spec = FigureSpec("name", "title", "best", sweep=(("FocalLoss", "gamma"),))
    weak = [
        replace(i, recipes=tuple(replace(r, loss={**r.loss, "gamma": 1.0}) for r in i.recipes), runs=j.runs)
        for i, j in zip(runs_of(ran, "Focal"), runs_of(ran, "CE"), strict=True)
    ]
    strong = runs_of(ran, "Focal")
    raw = {
        gamma: min(ECE()(Predictions.cat(list(item.validation))) for item in items)
        for gamma, items in ((1.0, weak), (3.0, strong))
    }
    (drawing,) = drawings(replace(study, figures=(spec,)), [*at(50, weak), *at(50, strong), *at(60, strong)])
    (panel,) = drawing.panels
    assert panel.lines[0].y == [min(raw, key=raw.__getitem__), 3.0]
    assert list(panel.ticks.values()) == ["50", "60"]


def test_with_all_validation_samples_the_sizes_end_at_the_table(ran: Ran) -> None:
    scaled, binned = draw(ran, "sizes", objectives=("Focal",)).panels
    runs = runs_of(ran, "Focal")
    assert scaled.lines[0].y[-1] == pytest.approx(sum(run.value("ece_by_ece") for run in runs) / 2)
    assert binned.lines[0].y[-1] == pytest.approx(sum(run.value("ece_binned") for run in runs) / 2)
    assert list(scaled.ticks.values()) == ["25", "80"]


def test_bins_show_gaps_of_validation_data_and_the_gammas_of_adafocal(ran: Ran) -> None:
    low, high, gammas = draw(ran, "bins", bins=(0, 14)).panels
    assert [line.label for line in low.lines] == ["CE", "Smooth", "Focal", "Inverse", "Ada"]
    ends = [[ran[1].load(recipe).trajectory[-1] for recipe in run.recipes] for run in runs_of(ran, "Ada")]
    gaps = [(a["validation"]["gaps_mass"][14] + b["validation"]["gaps_mass"][14]) / 2 for a, b in ends]
    assert high.lines[-1].y[-1] == pytest.approx(sum(gaps) / 2)
    assert [line.label for line in gammas.lines] == ["γ of Ada in bin 0", "γ of Ada in bin 14"]
    values = [(a["loss_state"]["gammas"][0] + b["loss_state"]["gammas"][0]) / 2 for a, b in ends]
    assert gammas.lines[0].y[-1] == pytest.approx(sum(values) / 2)


def test_histograms_hold_the_training_samples_of_all_folds(ran: Ran) -> None:
    panels = draw(ran, "logits", objectives=("CE", "Focal")).panels
    for panel, name in zip(panels, ("CE", "Focal"), strict=True):
        assert panel.title == name
        run = runs_of(ran, name)[0]
        largest = torch.cat([ran[1].load(recipe).max_logits for recipe in run.recipes])
        since = torch.cat([ran[1].load(recipe).learned_epochs for recipe in run.recipes])
        inside = (largest >= panel.edges[0]) & (largest <= panel.edges[-1])
        never = panel.groups["wrong at the end"]
        assert sum(sum(heights) for heights in panel.groups.values()) == int(inside.sum())
        assert sum(never) == int((inside & (since == 0)).sum())


def test_roc_curves_carry_the_area_before_and_after_temperature(ran: Ran) -> None:
    raw, scaled = draw(ran, "ood", objectives=("CE",)).panels
    run = runs_of(ran, "CE")[0]
    outside = [ran[1].load(recipe).ood["gaussian-noise"] for recipe in run.recipes]
    area = ood_auroc(run.before, Predictions.cat(outside))
    assert raw.lines[0].label == f"CE ({area:.3f})"
    with ignore_bound_warnings():
        moved = [rows.calibrated_by(c) for rows, c in zip(outside, run.calibrators("by_ece"), strict=True)]
    assert scaled.lines[0].label == f"CE ({ood_auroc(run.after('by_ece'), Predictions.cat(moved)):.3f})"
    assert (raw.lines[0].x[0], raw.lines[0].y[0]) == (0.0, 0.0)
    assert (raw.lines[0].x[-1], raw.lines[0].y[-1]) == pytest.approx((100.0, 100.0))


def test_at_gamma_0_the_focal_curve_is_temperature_scaling_by_ece(ran: Ran) -> None:
    (panel,) = draw(ran, "focal", objectives=("CE",)).panels
    run = runs_of(ran, "CE")[0]
    fitted = [
        TemperatureScaling(grid="komisarenko").fit(v.logits, v.require_labels()).temperature for v in run.validation
    ]
    place = panel.lines[0].x.index(0.0)
    # of equally good temperatures one fit takes the smallest, the other that closest to 1
    assert panel.lines[0].y[place] == pytest.approx(math.sqrt(math.prod(fitted)), rel=0.2)
    assert len(panel.lines[0].y) == len(panel.lines[0].x) == 10


def test_losses_are_drawn_by_the_probability_of_the_label(ran: Ran) -> None:
    (panel,) = draw(ran, "losses", objectives=("CE", "Focal", "Inverse")).panels
    for line, weight in zip(panel.lines, (lambda p: 1.0, lambda p: (1 - p) ** 3, lambda p: 1 + p), strict=True):
        for p, value in zip(line.x[::50].tolist(), line.y[::50].tolist(), strict=True):
            assert value == pytest.approx(-weight(p) * math.log(p), rel=1e-9)


def test_a_loss_of_batches_is_named_and_the_others_are_drawn(ran: Ran) -> None:
    study, _, measured = ran
    recipes = tuple(replace(recipe, loss={"type": "MMCELoss"}) for recipe in measured[0].recipes)
    spec = FigureSpec("name", "title", "losses", "a source")
    items = [replace(measured[0], objective="MMCE", recipes=recipes), *runs_of(ran, "Focal")]
    (drawing,) = drawings(replace(study, figures=(spec,)), items)
    (panel,) = drawing.panels
    assert panel.title == "without MMCE: no loss of single samples"
    assert [line.label for line in panel.lines] == ["Focal"]


def test_fits_are_made_on_validation_rows_of_the_same_fold(ran: Ran) -> None:
    run = runs_of(ran, "CE")[0]
    pooled = []
    for seen, test in zip(run.validation, run.test, strict=True):
        with ignore_bound_warnings():
            pooled.append(test.calibrated_by(HistogramBinning().fit(seen.logits, seen.require_labels())))
    assert run.value("ece_binned") == ECE()(Predictions.cat(pooled))
    whole = TemperatureScaling("ece").fit(run.before.logits, run.before.require_labels())
    assert [c.temperature for c in run.calibrators("optimal")] == [whole.temperature] * 2
    assert run.value("ece_optimal") <= run.value("ece")
    assert run.value("temperature_train") == pytest.approx(
        math.sqrt(math.prod(ran[1].load(recipe).trajectory[-1]["train"]["temperature"] for recipe in run.recipes))
    )
