"""The page that chooses a calibrator says what the record of ``benchmarks.use`` gives, in at most 1,500 words."""

import json
from pathlib import Path

from benchmarks import use

ROOT = Path(__file__).parent.parent
RECORD = json.loads((ROOT / "docs" / "results" / "use.json").read_text())


def test_the_page_has_the_records_figures_and_is_short() -> None:
    page = (ROOT / "docs" / "choose-a-calibrator.md").read_text()
    text = " ".join(page.split())
    losses = {name: f"{value:.3f}".lstrip("0") for name, value in RECORD["keep"]["mean_loss"].items()}
    assert f"{losses['members that keep it']} where only candidates that keep the ranking are tried" in text
    assert (
        f'{losses["order"]} with `keep="order"`, {losses["argmax"]} with `keep="argmax"` and {losses["free"]} free'
        in text
    )
    ece = RECORD["keep"]["ece_where_few_change"]
    assert (
        f"the ECE is {ece['argmax']:.2%} with the decision kept and {ece['free']:.2%} free".replace("%", " %") in text
    )
    assert len(text.split()) <= 1500
    assert page.count("![") == 1


def test_every_constant_that_decides_quality_has_its_sensitivity() -> None:
    assert set(RECORD["sensitivity"]["constants"]) == set(use.QUALITY)
    for moved in RECORD["sensitivity"]["constants"].values():
        assert max(abs(moved["halved"]), abs(moved["doubled"])) < 0.01  # of the mean log-loss


def test_exact_ones_leave_one_hot_rows_and_the_others_as_they_are() -> None:
    import torch

    p = use.with_ones(torch.tensor([[20.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    assert p[0].tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(p[1], torch.softmax(torch.tensor([1.0, 0.0, 0.0]).double(), 0))
