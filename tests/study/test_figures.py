"""Figures of studies as numbers: each kind against the runs that it is computed from."""

import math
from dataclasses import replace

import pytest
import torch
from tests.study.samples import study_text, write

from calibrant.calibrators import HistogramBinning, TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, ood_auroc
from calibrant.study import Run, Study, load_study
from calibrant.study.figures import Drawing, drawings, value_at
from calibrant.study.measures import Measured, ignore_bound_warnings
from calibrant.study.recipe import FigureSpec, Recipe
from calibrant.study.tables import grouped
from calibrant.study.train import epoch_figures, temperature_of_epoch

LOSSES = {
    "CE": '"CrossEntropyLoss"',
    "Smooth": '"LabelSmoothingLoss", smoothing = 0.1',
    "Focal": '"FocalLoss", gamma = 3.0',
    "Inverse": '"InverseFocalLoss", gamma = 1.0',
    "Ada": '"AdaFocalLoss"',
    "MMCE": '"MMCELoss"',
}
Ran = tuple[Study, list[Measured]]


def run_of(recipe: Recipe, place: int) -> Run:
    """Return a run without a training: random predictions, sharper from entry to entry of the trajectory."""
    generator = torch.Generator().manual_seed(place)

    def rows(count: int, *, labelled: bool = True) -> Predictions:
        logits = 3 * torch.randn(count, 3, generator=generator)
        labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]
        return Predictions.from_logits(logits, labels if labelled else None)

    splits, trajectory = {"train": rows(60), "validation": rows(80), "test": rows(90)}, []
    for epoch in (2, 4):
        seen = {name: Predictions.from_logits(part.logits * epoch / 4, part.labels) for name, part in splits.items()}
        entry = {
            name: {**epoch_figures(one), "temperature": temperature_of_epoch(one).temperature}
            for name, one in seen.items()
        }
        gammas = torch.rand(15, generator=generator).tolist() if recipe.loss["type"] == "AdaFocalLoss" else None
        trajectory.append({"epoch": epoch, **entry, **({"loss_state": {"gammas": gammas}} if gammas else {})})
    learned = torch.randint(0, 5, (60,), generator=generator)
    largest = splits["train"].logits.amax(1)
    ood = {"gaussian-noise": rows(70, labelled=False)}
    return Run(splits["validation"], splits["test"], ood, trajectory, learned, largest)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A study of six losses, two seeds and two folds, with its runs."""
    text = study_text(LOSSES, data="folds = 2, train = 60", training="epochs = 4, batch = 20")
    study = load_study(write(tmp_path_factory.mktemp("figures"), text))
    cells = grouped(enumerate(study.cells()), lambda one: (one[1].setting, one[1].objective, one[1].recipe.seed))
    return study, [
        Measured([run_of(cell.recipe, place) for place, cell in folds], *where, [cell.recipe for _, cell in folds])
        for where, folds in cells.items()
    ]


def draw(ran: Ran, kind: str, **fields: object) -> Drawing:
    study, measured = ran
    spec = FigureSpec("name", "title", kind, "a source", **fields)
    (drawing,) = drawings(replace(study, figures=(spec,)), measured)
    return drawing


def seeds_of(ran: Ran, objective: str) -> list[Measured]:
    return [item for item in ran[1] if item.objective == objective]


def test_a_trajectory_is_the_mean_over_folds_and_seeds_with_its_range(ran: Ran) -> None:
    drawing = draw(ran, "trajectory", panels=(("test.ece",), ("train.nll", "train.nll_wrong")), objectives=("CE",))
    first, second = drawing.panels
    by_seed = []
    for item in seeds_of(ran, "CE"):
        folds = [run.trajectory for run in item.runs]
        by_seed.append([(a["test"]["ece"] + b["test"]["ece"]) / 2 for a, b in zip(*folds, strict=True)])
    line = first.lines[0]
    assert (line.label, line.x, first.percent) == ("CE", [2.0, 4.0], True)
    for values, of in ((line.y, lambda pair: sum(pair) / 2), (line.low, min), (line.high, max)):
        assert values == pytest.approx([of(pair) for pair in zip(*by_seed, strict=True)])
    assert [line.label for line in second.lines] == ["log-loss", "log-loss if misclassified"]
    assert "a source" in drawing.caption
    assert "2 seeds" in drawing.caption


def test_what_a_trajectory_lacks_is_no_number() -> None:
    assert math.isnan(value_at({"test": {"nll_wrong": None}}, "test.nll_wrong"))
    assert math.isnan(value_at({"test": {}}, "test.optimal_ece"))
    assert math.isnan(value_at({"loss_state": {"gammas": [1.0]}}, "loss_state.gammas.3"))
    assert value_at({"loss_state": {"gammas": [1.0, 2.5]}}, "loss_state.gammas.1") == 2.5


def test_a_sweep_goes_along_the_strength_from_cross_entropy(ran: Ran) -> None:
    entries = (("LabelSmoothingLoss", "smoothing"), ("FocalLoss", "gamma"))
    smooth, focal = draw(ran, "sweep", sweep=entries, panels=(("ece", "ece_optimal"),)).panels
    assert (smooth.ticks, focal.ticks) == ({0.0: "0", 1.0: ".1"}, {0.0: "0", 1.0: "3"})
    values = [[item.value("ece") for item in seeds_of(ran, name)] for name in ("CE", "Smooth")]
    assert smooth.lines[0].y == pytest.approx([sum(v) / 2 for v in values])
    assert smooth.lines[0].low == pytest.approx([min(v) for v in values])
    assert all(best <= raw for best, raw in zip(smooth.lines[1].y, smooth.lines[0].y, strict=True))
    # focal loss and its inverse share an axis through cross-entropy
    entries = (("FocalLoss", "gamma", "-"), ("InverseFocalLoss", "gamma"))
    (panel,) = draw(ran, "sweep", sweep=entries, panels=(("temperature",),)).panels
    assert list(panel.ticks.values()) == ["−3", "0", "1"]
    wanted = [sum(m.value("temperature") for m in seeds_of(ran, name)) / 2 for name in ("Focal", "CE", "Inverse")]
    assert panel.lines[0].y == pytest.approx(wanted)


def test_the_best_strength_is_chosen_on_validation_data_for_each_size(ran: Ran) -> None:
    def changed(items: list[Measured], part: str, entry: dict[str, float]) -> list[Measured]:
        tables = [[{part: {**getattr(recipe, part), **entry}} for recipe in item.recipes] for item in items]
        return [
            replace(item, recipes=[replace(recipe, **new) for recipe, new in zip(item.recipes, one, strict=True)])
            for item, one in zip(items, tables, strict=True)
        ]

    strong = seeds_of(ran, "Focal")
    weak = [replace(one, runs=other.runs) for one, other in zip(strong, seeds_of(ran, "CE"), strict=True)]
    weak = changed(weak, "loss", {"gamma": 1.0})
    raw = {
        gamma: min(ECE()(Predictions.cat(item.validation)) for item in items)
        for gamma, items in ((1.0, weak), (3.0, strong))
    }
    spec = FigureSpec("name", "title", "best", sweep=(("FocalLoss", "gamma"),))
    items = [*changed([*weak, *strong], "data", {"train": 50}), *changed(strong, "data", {"train": 60})]
    (drawing,) = drawings(replace(ran[0], figures=(spec,)), items)
    (panel,) = drawing.panels
    assert panel.lines[0].y == [min(raw, key=raw.__getitem__), 3.0]
    assert list(panel.ticks.values()) == ["50", "60"]


def test_with_all_validation_samples_the_sizes_end_at_the_table(ran: Ran) -> None:
    items = seeds_of(ran, "Focal")
    for panel, name in zip(draw(ran, "sizes", objectives=("Focal",)).panels, ("by_ece", "binned"), strict=True):
        assert panel.lines[0].y[-1] == pytest.approx(sum(item.value(f"ece_{name}") for item in items) / 2)
        assert list(panel.ticks.values()) == ["25", "80"]


def test_bins_show_gaps_of_validation_data_and_the_gammas_of_adafocal(ran: Ran) -> None:
    low, _, high, gammas = draw(ran, "bins", objectives=("CE", "Ada")).panels
    assert [line.label for line in low.lines] == ["CE", "Ada"]
    assert [line.label for line in gammas.lines] == [f"γ of Ada in bin {index}" for index in (0, 7, 14)]
    ends = [run.trajectory[-1] for item in seeds_of(ran, "Ada") for run in item.runs]
    assert high.lines[-1].y[-1] == pytest.approx(sum(end["validation"]["gaps_mass"][14] for end in ends) / 4)
    assert gammas.lines[0].y[-1] == pytest.approx(sum(end["loss_state"]["gammas"][0] for end in ends) / 4)


def test_histograms_and_learned_samples_are_of_all_folds(ran: Ran) -> None:
    for panel, name in zip(draw(ran, "logits", objectives=("CE", "Focal")).panels, ("CE", "Focal"), strict=True):
        assert panel.title == name
        runs = seeds_of(ran, name)[0].runs
        largest, since = torch.cat([run.max_logits for run in runs]), torch.cat([run.learned_epochs for run in runs])
        inside = (largest >= panel.edges[0]) & (largest <= panel.edges[-1])
        assert sum(sum(heights) for heights in panel.groups.values()) == int(inside.sum())
        assert sum(panel.groups["misclassified at the end"]) == int((inside & (since == 0)).sum())
        assert sum(panel.groups["correct since epoch ≤ 1"]) == int((inside & (since == 1)).sum())
    (panel,) = draw(ran, "learned", objectives=("CE",)).panels
    since = torch.cat([run.learned_epochs for item in seeds_of(ran, "CE") for run in item.runs])
    assert panel.lines[0].y == pytest.approx([float(((since > 0) & (since <= e)).double().mean()) for e in (2, 4)])


def test_reliability_and_roc_curves_are_before_and_after_temperature(ran: Ran) -> None:
    item = seeds_of(ran, "CE")[0]
    shown = draw(ran, "reliability", objectives=("CE",)).panels
    for panel, rows in zip(shown, (item.before, item.after("by_ece")), strict=True):
        assert f"ECE {100 * ECE()(rows):.2f} %" in panel.title
        assert int(panel.table.count.sum()) == 180
    raw, scaled = draw(ran, "ood", objectives=("CE",)).panels
    outside = [run.ood["gaussian-noise"] for run in item.runs]
    assert raw.lines[0].label == f"CE ({ood_auroc(item.before, Predictions.cat(outside)):.3f})"
    moved = [rows.calibrated_by(c) for rows, c in zip(outside, item.calibrators("by_ece"), strict=True)]
    assert scaled.lines[0].label == f"CE ({ood_auroc(item.after('by_ece'), Predictions.cat(moved)):.3f})"
    assert (raw.lines[0].x[0], raw.lines[0].y[0]) == (0.0, 0.0)
    assert (raw.lines[0].x[-1], raw.lines[0].y[-1]) == pytest.approx((100.0, 100.0))


def test_at_gamma_0_the_focal_curve_is_temperature_scaling_by_ece(ran: Ran) -> None:
    (panel,) = draw(ran, "focal", objectives=("CE",)).panels
    fitted = [TemperatureScaling(grid="komisarenko").fit(v).temperature for v in seeds_of(ran, "CE")[0].validation]
    place = panel.lines[0].x.index(0.0)
    # of equally good temperatures one fit takes the smallest, the other that closest to 1
    assert panel.lines[0].y[place] == pytest.approx(math.sqrt(math.prod(fitted)), rel=0.2)
    assert len(panel.lines[0].y) == len(panel.lines[0].x) == 10


def test_losses_are_drawn_by_the_probability_of_the_label(ran: Ran) -> None:
    (panel,) = draw(ran, "losses", objectives=("CE", "Focal", "Inverse", "MMCE")).panels
    assert panel.title == "without MMCE: no loss of single samples"
    for line, weight in zip(panel.lines, (lambda p: 1.0, lambda p: (1 - p) ** 3, lambda p: 1 + p), strict=True):
        for p, value in zip(line.x[::50].tolist(), line.y[::50].tolist(), strict=True):
            assert value == pytest.approx(-weight(p) * math.log(p), rel=1e-9)


def test_fits_are_made_on_validation_rows_of_the_same_fold(ran: Ran) -> None:
    item, pooled = seeds_of(ran, "CE")[0], []
    for run in item.runs:
        with ignore_bound_warnings():
            pooled.append(run.test.calibrated_by(HistogramBinning().fit(run.validation)))
    assert item.value("ece_binned") == ECE()(Predictions.cat(pooled))
    whole = TemperatureScaling("ece").fit(item.before)
    assert [c.temperature for c in item.calibrators("optimal")] == [whole.temperature] * 2
    assert item.value("ece_optimal") <= item.value("ece")
    at_the_end = [run.trajectory[-1]["train"]["temperature"] for run in item.runs]
    assert item.value("temperature_train") == pytest.approx(math.sqrt(math.prod(at_the_end)))
