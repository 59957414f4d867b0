"""Comparing two models: who wins, by how much, in what words, and what is refused."""

from dataclasses import replace

import pytest
import torch

from calibrant import Pairs, Predictions
from calibrant.errors import InputError
from calibrant.evaluate import compare, compare_all
from calibrant.metrics import ECE, MCE, NLL, Accuracy, Brier


def model(temperature: float = 1.0, *, noise: float = 0.0, rows: int = 2000, seed: int = 0) -> Predictions:
    """Return predictions that are calibrated at temperature 1 without noise."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randn(rows, 3, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(true.softmax(dim=1), 1, generator=generator)[:, 0]
    seen = true + noise * torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return Predictions.from_logits(seen / temperature, labels)


def test_a_better_calibrated_model_wins_where_it_is_better() -> None:
    found = compare(model(0.4), model(1.0))
    by = {row.metric: row for row in found.rows}
    assert by["Accuracy()"].winner is None
    assert by["NLL()"].winner == "b"
    gaps = by[repr(ECE())]
    assert (gaps.winner, gaps.low, gaps.high) == ("b", None, None)
    assert gaps.difference == ECE()(model(1.0)) - ECE()(model(0.4))
    first = f"B is better calibrated than A: its ECE is lower by {-100 * gaps.difference:.2f} points"
    assert found.verdict.startswith(f"{first} (p < 0.001). B is better than A: its NLL is lower by ")


def test_a_model_against_itself_cannot_be_told_apart() -> None:
    found = compare(model(), model())
    assert [row.winner for row in found.rows] == [None] * 4
    assert [row.p_value for row in found.rows] == [1.0] * 4
    assert found.verdict.startswith("A and B do not differ significantly in calibration: both have the same ECE")


def test_each_model_may_win_somewhere() -> None:
    sharp, blunt = model(0.3, noise=0.0, rows=20_000), model(1.0, noise=1.0, rows=20_000)
    assert [row.winner for row in compare(sharp, blunt, metrics=[Accuracy(), ECE()]).rows] == ["a", "b"]


def test_several_models_are_corrected_over_their_pairs() -> None:
    models = {f"T{t}": model(t, rows=800) for t in (1.0, 1.15, 1.3)}
    found = compare_all(models, metrics=[NLL()])
    alone = {names: compare(*(models[name] for name in names), metrics=[NLL()]).rows[0].p_value for names in found}
    assert list(found) == [("T1.0", "T1.15"), ("T1.0", "T1.3"), ("T1.15", "T1.3")]
    smallest = min(alone, key=alone.get)
    assert found[smallest].rows[0].p_value == pytest.approx(3 * alone[smallest])
    assert found["T1.0", "T1.3"].verdict == "T1.0 and T1.3 do not differ significantly in NLL."


def test_clustered_rows_widen_the_interval() -> None:
    repeated = torch.arange(1000).repeat_interleave(10)
    free = [model(temperature, rows=1000)[repeated] for temperature in (1.0, 1.3)]
    tied = [replace(one, groups=repeated) for one in free]
    widths = [c.rows[1].high - c.rows[1].low for c in (compare(*free), compare(*tied))]
    assert widths[1] / widths[0] == pytest.approx(10**0.5, rel=0.15)


def test_groups_of_either_model_are_those_of_both() -> None:
    free, other = model(rows=400), model(0.4, rows=400)
    logits, labels = free.logits, free.labels
    tied = Predictions.from_logits(logits, labels, groups=torch.arange(400) // 4)
    there, back = compare(tied, other).rows[1], compare(other, tied).rows[1]
    assert (there.low, there.high, there.p_value) == pytest.approx((-back.high, -back.low, back.p_value))
    with pytest.raises(InputError, match="same groups"):
        compare(tied, Predictions.from_logits(logits, labels, groups=torch.arange(400) // 5))


def test_other_events_and_decisions_beside_events_are_refused() -> None:
    events = [Pairs.from_probs([0.9, 0.2, 0.6], y) for y in ([1, 0, 1], [1, 1, 0])]
    with pytest.raises(InputError, match="label 0 and 1 in row 1"):
        compare(*events)
    with pytest.raises(InputError, match="same kind of outcomes"):
        compare(events[0], Pairs.from_top_label([0.9, 0.2, 0.6], [1, 0, 1], [1, 1, 1]))


def test_an_infinite_loss_is_not_tested_but_shown() -> None:
    a = Predictions.from_probs([[1.0, 0.0]] * 5 + [[0.5, 0.5]] * 5, [1] + [0] * 9)
    b = Predictions.from_probs([[0.9, 0.1]] * 10, [1] + [0] * 9)
    with pytest.warns(UserWarning, match="log-loss is infinite"):
        row = compare(a, b, metrics=[NLL()]).rows[0]
    assert row.a == float("inf")
    assert row.p_value is None


def test_other_rows_are_refused() -> None:
    with pytest.raises(InputError, match="10 and 20 rows"):
        compare(model(rows=10), model(rows=20))
    with pytest.raises(InputError, match="same rows in the same order, got label"):
        compare(model(seed=1), model(seed=2))
    a, b = (Predictions.from_probs([[0.7, 0.2, 0.1]], ["a"], class_names=tuple(names)) for names in ("abc", "cab"))
    with pytest.raises(InputError, match=r"the classes of A, in order: a, b, c.*c, a, b"):
        compare(a, b)
    with pytest.raises(InputError, match="unlabelled"):
        compare(Predictions.from_logits([[2.0, 0.0]]), Predictions.from_logits([[2.0, 0.0]]))
    assert compare(Pairs.from_probs([0.5, 1], [0, 1]), Pairs.from_probs([0.5, 1], [0, 1])).n == 2


def test_few_errors_decide_no_loss() -> None:
    sure = Predictions.from_binary_probs([0.999] * 300, [1] * 298 + [0] * 2)
    unsure = Predictions.from_binary_probs([0.9] * 300, [1] * 298 + [0] * 2)
    found = compare(sure, unsure, metrics=[NLL(), Brier(), Accuracy()])
    assert [row.p_value is None for row in found.rows] == [True, True, False]
    assert "are needed, but there are only 2; about 800 rows would be enough" in found.verdict
    more = [Predictions.from_binary_probs([p] * 300, [1] * 295 + [0] * 5, groups=groups)
            for groups in (None, list(range(300))) for p in (0.999, 0.9)]  # fmt: skip
    for pair, tested in ((more[:2], True), (more[2:], False)):
        found = compare(*pair, metrics=[NLL(), Brier(), ECE()])
        assert [row.p_value is not None for row in found.rows] == [tested, tested, False]
        what = "" if tested else "groups with "
        assert f"(20 {what}wrong decisions of each model are needed, but there are only 5;" in found.verdict


def test_no_fewer_rows_are_asked_for_than_errors() -> None:
    wrong = Predictions.from_logits([[2.0, 0.0]], [1])  # a single row, on which every decision is wrong
    verdict = compare(wrong, wrong).verdict
    assert "20 wrong decisions of each model are needed, but there are only 1; about 32 rows would be enough" in verdict


def test_one_group_has_no_test_but_its_figures() -> None:
    data = Predictions.from_logits(torch.randn(50, 3), [0, 1] * 25, groups=[7] * 50)
    assert {row.p_value for row in compare(data, data, metrics=[Accuracy(), MCE()]).rows} == {None}


def test_decisions_that_few_rows_tell_apart_are_tested_by_signs() -> None:
    labels = [1] * 100
    a = Predictions.from_binary_probs([0.9] * 100, labels)
    for differing, p_value in ((5, 0.0625), (6, 0.03125)):
        b = Predictions.from_binary_probs([0.9] * (100 - differing) + [0.1] * differing, labels)
        row = compare(a, b, metrics=[Accuracy()]).rows[0]
        assert row.p_value == pytest.approx(p_value)
        assert (row.high < 0) == (row.winner == "a") == (p_value < 0.05)
