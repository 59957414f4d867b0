"""A judge corrected by a few labels: covered scores and rankings, its bias, and tables with one sentence for each mistake."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.errors import CalibrantError, FileFormatError, InputError, NoIntervalError
from calibrant.language import judge_audit, judge_rows, read_judged
from calibrant.language.judging import JudgeAudit

Arrays = dict[str, Any]
SYSTEMS = np.repeat(["a", "b", "c"], 800)


def scored(seed: int = 0, *, labels: int = 240, agree: float = 0.94, against: float = 0.0) -> Arrays:
    """Return three systems' rows: truth, a judge that agrees with it, and disfavours c by ``against``; people's labels of some."""
    rng = np.random.default_rng(seed)
    truth = (rng.random(2400) < np.repeat([0.85, 0.7, 0.5], 800)).astype(float)
    right = rng.random(2400) < agree - against * ((SYSTEMS == "c") & (truth == 1))
    human = np.full(2400, -1.0)
    human[rng.choice(2400, labels, replace=False)] = 0
    human = np.where(human == 0, truth, human)
    return {"judge": np.where(right, truth, 1 - truth), "human": human, "truth": truth}


def means(truth: np.ndarray) -> dict[str, float]:
    return {name: float(truth[name == SYSTEMS].mean()) for name in "abc"}


def covers(found: JudgeAudit, truth: dict[str, float]) -> bool:
    return all(one.low <= truth[name] <= one.high for name, one in found.scores.items())


@pytest.mark.parametrize("against", [0.0, 0.25])
def test_scores_are_covered_and_narrower_than_the_labels_alone_even_where_the_judge_is_biased(against: float) -> None:
    held, ratios = 0, []
    for seed in range(20):
        rows = scored(seed, against=against)
        found = judge_audit(rows["judge"], rows["human"], systems=SYSTEMS)
        held += covers(found, means(rows["truth"]))
        ratios += [(one.high - one.low) / (found.human[name].high - found.human[name].low)
                   for name, one in found.scores.items()]  # fmt: skip
    assert held >= 17
    assert np.median(ratios) < 0.95
    if against:
        assert found.bias["system=c"].high < 0.02 < -found.bias["system=c"].estimate


def test_all_labels_give_the_human_mean_itself() -> None:
    rows = scored()
    found = judge_audit(rows["judge"], rows["truth"], systems=SYSTEMS)
    for name, mean in means(rows["truth"]).items():
        assert (found.scores[name].estimate, found.scores[name].low) == (pytest.approx(mean), pytest.approx(mean))
    assert found.ranking.order == ("a", "b", "c")
    assert found.ranking.better == (("a", "b"), ("a", "c"), ("b", "c"))
    assert found.ranking.ranks == {"a": (1, 1), "b": (2, 2), "c": (3, 3)}
    assert judge_audit(rows["judge"], rows["truth"], systems=SYSTEMS, target="population").scores["a"].low < mean + 1


def test_an_undecided_pair_says_how_many_more_labels_or_that_none_do() -> None:
    rows = scored(labels=60)
    found = judge_audit(rows["judge"], rows["human"], systems=SYSTEMS)
    assert set(found.ranking.more) | set(found.ranking.better) == set(found.ranking.differences)
    assert found.ranking.more
    twins = judge_audit(rows["judge"], rows["human"], systems=np.tile(["x", "y"], 1200))
    assert twins.ranking.ranks == dict.fromkeys(twins.ranking.order, (1, 2))


def test_comparisons_in_both_orders_give_win_rates_and_the_place_effect() -> None:
    rng = np.random.default_rng(3)
    first = rng.integers(0, 3, 1500)
    second = (first + rng.integers(1, 3, 1500)) % 3
    wins = (rng.random(1500) < 1 / (1 + np.exp(1.5 * (first - second)))).astype(float)
    once, again = (np.where(rng.random(1500) < 0.1, favoured, wins) for favoured in (1, 0))
    human = np.where(rng.random(1500) < 0.15, wins, -1)
    found = judge_audit(once, human, systems=(first, second), swapped=again)
    truth = {str(k): np.r_[wins[first == k], 1 - wins[second == k]].mean() for k in range(3)}
    assert covers(found, truth)
    assert found.ranking.better == (("0", "1"), ("0", "2"), ("1", "2"))
    assert found.position.low <= 0.05 <= found.position.high  # a tenth of the verdicts go to what is shown first
    assert found.consistent == pytest.approx(0.9, abs=0.03)
    # Two systems alone win and lose against each other: the difference is that of a rate and its complement.
    pair = judge_audit(once, human, systems=(np.where(first < second, "x", "y"), np.where(first < second, "y", "x")))
    assert pair.scores["x"].estimate == pytest.approx(1 - pair.scores["y"].estimate)
    gap = pair.ranking.differences["x", "y"]
    assert gap.high - gap.low == pytest.approx(2 * (pair.scores["x"].high - pair.scores["x"].low), rel=1e-6)


def test_several_judges_are_pooled_to_more_than_the_best_of_them() -> None:
    rng = np.random.default_rng(0)
    truth = (rng.random(3000) < 0.6).astype(float)
    judges = np.column_stack([np.where(rng.random(3000) < q, truth, 1 - truth) for q in (0.86, 0.84, 0.82)])
    human = np.where(rng.random(3000) < 0.1, truth, -1)
    alone, pooled = judge_audit(judges[:, 0], human), judge_audit(judges, human)
    assert pooled.calibration.correlation > alone.calibration.correlation + 0.05
    assert pooled.calibration.gain < alone.calibration.gain


def test_annotators_who_disagree_are_averaged_and_their_agreement_is_told() -> None:
    rng = np.random.default_rng(0)
    chance = rng.choice([0.1, 0.9], 2000)
    labels = (rng.random((2000, 2)) < chance[:, None]).astype(float)
    labels[rng.random(2000) > 0.2] = -1
    found = judge_audit(chance, labels)
    assert found.scores["all"].low <= chance.mean() <= found.scores["all"].high
    assert found.calibration.annotators == pytest.approx(0.82, abs=0.06)  # .9² + .1²
    assert found.calibration.ece is None
    ratings = rng.integers(0, 4, 2000) / 4  # and ties: equal ones agree, in three quarters of the rows
    second = np.where(np.arange(2000) % 4 == 0, 1.0, ratings)
    assert judge_audit(chance, np.column_stack([ratings, second])).calibration.annotators == 0.75


def test_a_column_shows_where_the_judge_is_lenient() -> None:
    rng = np.random.default_rng(0)
    truth, length = (rng.random(4000) < 0.6).astype(float), rng.random(4000)
    judge = np.where((length > 0.67) & (rng.random(4000) < 0.5), 1.0, truth)
    found = judge_audit(judge, np.where(rng.random(4000) < 0.2, truth, -1), by={"length": length, "kind": length > 0.5})
    assert [name.split("=")[0] for name in found.bias] == ["length"] * 3 + ["kind"] * 2
    assert [one.low > 0 for one in found.bias.values()] == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"judge": [1.5] * 2400}, "expected judge in [0, 1], got 1.5 in row 0; scale ratings"),
        ({"human": [2.0] * 2400}, "expected human in [0, 1], or -1 for none, got 2 in row 0"),
        ({"human": [1.0] * 10}, "expected human with one row for each of judge's"),
        ({"human": [-1.0] * 2400}, "expected at least 10 human labels, got 0"),
        ({"systems": ["a"]}, "expected systems (2400,), one for each row"),
        ({"systems": (SYSTEMS, SYSTEMS)}, "expected two systems in each comparison, got 'a' with itself"),
        ({"systems": np.arange(2400) // 5}, "expected a system with at least 10 human labels"),
        ({"inclusion": np.zeros(2400)}, "expected inclusion probabilities in (0, 1]"),
        ({"swapped": [[0.0, 1.0]] * 2400}, "expected swapped of shape (2400, 1), as judge"),
    ],
)
def test_wrong_arguments_are_one_sentence(change: Arrays, message: str) -> None:
    rows = scored()
    with pytest.raises((InputError, NoIntervalError)) as caught:
        judge_audit(**{"judge": rows["judge"], "human": rows["human"], "systems": SYSTEMS, **change})
    assert message in str(caught.value)


def written(place: Path, text: str) -> Path:
    place.write_text(text)
    return place


def test_tables_hold_words_ratings_samples_and_annotators(tmp_path: Path) -> None:
    words = read_judged(written(tmp_path / "w.csv", "id,system,score\n1,a,yes\n1,b,No\n2,a,0.25\n2,b,tie\n"))
    assert words.judge[:, 0].tolist() == [1, 0, 0.25, 0.5]
    assert words.questions == ["1", "1", "2", "2"]
    human, inclusion = words.human(
        written(tmp_path / "h.csv", "id,system,label,inclusion\n1,b,no,.5\n1,b,yes,.5\n2,a,,\n")
    )
    assert human.tolist() == [[-1, -1], [0, 1], [-1, -1], [-1, -1]]
    assert inclusion[1] == 0.25  # of two rows drawn with .5 one has a label
    rated = read_judged(
        written(tmp_path / "r.csv", "id,one,two\nx,1,5\nx,3,5\ny,4,2\n"), scores=("one", "two"), scale=(1, 5)
    )
    assert rated.judge.tolist() == [[0.25, 1.0], [0.75, 0.25]]  # two samples of x are averaged
    pairs = read_judged(written(tmp_path / "p.csv", "id,first,second,score,swapped\n1,m,n,A,B\n2,m,n,n,n\n3,m,n,A,A\n"))
    assert (pairs.judge[:, 0].tolist(), pairs.swapped[:, 0].tolist()) == ([1, 0, 1], [1, 0, 0])  # type: ignore[index]
    assert pairs.human(written(tmp_path / "q.csv", "id,label\n1,m\n2,n\n"))[0][:, 0].tolist() == [1, 0, -1]


@pytest.mark.parametrize(
    ("table", "labels", "error", "message"),
    [
        ("id,mark\n1,1\n", "", FileFormatError, "expected the columns id and score in t.csv, got id, mark"),
        ("id,score\n1,good\n", "", InputError, "expected a score or label in [0, 1], yes or no, A, B or tie, got 'good'"),
        ("id,score\n1,1\n", "id,label\n2,1\n", InputError, "expected labels of rows that the judge scored, got one of 2"),
        ("id,score\n1,1\n", "row,label\n2,1\n", FileFormatError, "expected the columns id and label in l.csv"),
        ("id,system,score\n1,a,1\n1,b,1\n", "id,label\n1,1\n", InputError, "add the column system to the labels"),
        ("id,score,swapped,also\n1,1,0,1\n", "", InputError, "expected one judge with the column swapped, got 2"),
    ],
)  # fmt: skip
def test_wrong_tables_are_one_sentence(
    table: str, labels: str, error: type[CalibrantError], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("t.csv"), table)
    written(Path("l.csv"), labels)
    with pytest.raises(error) as caught:
        read_judged("t.csv", scores=("score", "also") if "also" in table else ("score",)).human("l.csv")
    assert message in str(caught.value)


def test_rows_drawn_in_two_batches_cover_and_leave_less_than_the_correlation_would() -> None:
    held, ratios, limits = 0, [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        truth = (rng.random(1500) < 0.98).astype(float)
        judge = np.where(rng.random(1500) < 0.93, truth, 1 - truth)
        human, inclusion = np.full(1500, -1.0), None
        for count in (60, 140):
            rows, inclusion = judge_rows(judge, count, human=None if inclusion is None else human, inclusion=inclusion)
            assert (human[rows] == -1).all()
            human[rows] = truth[rows]
        found = judge_audit(judge, human, inclusion=inclusion).scores["all"]
        even = judge_audit(judge, np.where(rng.permutation(1500) < 200, truth, -1))
        held += found.low <= truth.mean() <= found.high
        ratios.append((found.high - found.low) / (even.human["all"].high - even.human["all"].low))
        limits.append(even.calibration.gain)
    assert held >= 10
    assert np.median(ratios) < 0.75 < np.median(limits)


def test_each_row_is_drawn_as_often_as_said() -> None:
    judge = np.repeat([1.0, 0.0, 0.6], 40)
    systems = np.tile(["a", "b"], 60)
    human = np.where(np.arange(120) % 3 == 0, np.arange(120) % 2, -1)
    left = human < 0
    drawn = np.zeros(120)
    for seed in range(60):
        rows, inclusion = judge_rows(judge, 20, human=human, systems=systems, seed=seed)
        drawn[rows] += 1
    # with 40 of 120 rows labelled evenly, a third of each system
    now = 1 - (1 - inclusion[left]) / (1 - 1 / 3)
    assert drawn[~left].sum() == 0
    assert now.sum() == pytest.approx(20)
    assert np.abs(drawn[left] / 60 - now).max() < 4 * np.sqrt(0.25 / 60)
    assert judge_rows(judge, 80, human=human)[1].min() == 1  # all that are left


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 4000}, "expected count as an integer of at most"),
        ({"swapped": np.zeros((2400, 2))}, "expected swapped of shape"),
        ({"inclusion": np.full(2400, np.nan)}, "expected inclusion probabilities in (0, 1]"),
        ({"judge": np.full(2400, 2.0)}, "expected judge in [0, 1]"),
    ],
)
def test_wrong_draws_are_one_sentence(change: Arrays, message: str) -> None:
    rows = scored()
    with pytest.raises(InputError) as caught:
        judge_rows(**{"judge": rows["judge"], "human": rows["human"], **change})
    assert message in str(caught.value)
