"""``calibrant judge``: tables and logs of judges, scores with intervals in words and JSON, and one sentence for a mistake."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run
from tests.cli.test_options import write_judged


def answer(name: str, yes: float) -> str:
    top = [{"token": "Yes", "logprob": math.log(yes)}, {"token": "No", "logprob": math.log(1 - yes)}]
    token = {"token": "Yes", "logprob": top[0]["logprob"], "top_logprobs": top}
    return json.dumps({"id": name, "choices": [{"message": {"content": "Yes"}, "logprobs": {"content": [token]}}]})


def test_a_table_and_a_log_of_the_same_verdicts_agree(home: Path, run: Run) -> None:
    write_judged(home)
    done = run("judge", "judged.csv", "--human", "human.csv", "--by", "length", code=0)
    assert "100 human labels for 200 rows" in done.stdout
    assert "rank" in done.stdout
    assert "length=up to" in done.stdout
    lines = [line.split(",") for line in Path("judged.csv").read_text().splitlines()[1:]]
    Path("log.jsonl").write_text("\n".join(answer(line[0], 0.98 if line[2] == "1" else 0.02) for line in lines))
    Path("about.csv").write_text("id,system\n" + "".join(f"{line[0]},{line[1]}\n" for line in lines))
    told = json.loads(run("judge", "judged.csv", "--human", "human.csv", "--json").stdout)
    by_log = run("judge log.jsonl --from openai --as yes-no --about about.csv --human human.csv --json", code=0)
    again = json.loads(by_log.stdout)
    assert set(told) == {
        "scores", "ranking", "calibration", "bias", "position", "consistent", "refused", "rows", "labels", "human",
    }  # fmt: skip
    for name in ("new", "old"):
        assert again["scores"][name]["estimate"] == pytest.approx(told["scores"][name]["estimate"], abs=1e-6)


def test_comparisons_of_a_log_in_both_orders(home: Path, run: Run) -> None:
    rng = np.random.default_rng(0)
    wins = rng.random(120) < 0.7
    for file, names in (("one.jsonl", "AB"), ("two.jsonl", "BA")):
        rows = []
        for number, win in enumerate(wins):
            p = 0.9 if win else 0.1
            top = [{"token": names[0], "logprob": math.log(p)}, {"token": names[1], "logprob": math.log(1 - p)}]
            token = {"token": names[0], "logprob": top[0]["logprob"], "top_logprobs": top}
            rows.append(
                {"id": f"c{number}", "choices": [{"message": {"content": "A"}, "logprobs": {"content": [token]}}]}
            )
        Path(file).write_text("\n".join(map(json.dumps, rows)))
    Path("about.csv").write_text("id,first,second\n" + "".join(f"c{i},x,y\n" for i in range(120)))
    Path("human.csv").write_text("id,label\n" + "".join(f"c{i},{'x' if wins[i] else 'y'}\n" for i in range(60)))
    done = run(
        "judge one.jsonl --from openai --as pairwise --options A,B --swapped two.jsonl --about about.csv --human human.csv --json",
        code=0,
    )
    told = json.loads(done.stdout)
    assert (told["consistent"], told["position"]["estimate"]) == (1.0, pytest.approx(0))
    assert told["scores"]["x"]["low"] <= wins.mean() <= told["scores"]["x"]["high"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--kind rating", "no such option"),
        ("--as rating", "expected only options that have an effect, got --as for a table; add --from"),
        ("--ratings 5", "expected --ratings as LOW-HIGH, got '5'"),
        ("--by place", "expected a column of judged.csv (id, system, score, second, length), got 'place'"),
        ("--from openai --as choices", "expected a judge's answers as yes-no"),
        ("--from openai --as yes-no --missing drop", "write --missing bound"),
        ("--scores length", "name the lowest and highest with --ratings"),
        ("--ratings 0-1 --scores length", "expected a rating from 0 to 1"),
        ("--ratings nan-5", "expected --ratings as LOW-HIGH"),
    ],
)
def test_a_mistake_is_one_sentence(more: str, message: str, home: Path, run: Run) -> None:
    write_judged(home)
    done = run(f"judge judged.csv --human human.csv {more}", code=2)
    assert message.casefold() in " ".join(done.stderr.split()).casefold()


def test_labels_that_are_none_and_chances_that_are_missing_are_one_sentence(home: Path, run: Run) -> None:
    write_judged(home)
    lines = [line.split(",")[:2] for line in Path("human.csv").read_text().splitlines()[1:]]
    for label, chance, message in (
        ("maybe", ".5", "got 'maybe'; correct it, or leave it out"),
        ("4", ".5", "got '4'; name the lowest and highest with --ratings"),
        *(
            ("", chance, "put back what sample wrote, or take the column out")
            for chance in ("", "0", "1.5", "nan", "x")
        ),
    ):
        wrong = [[lines[0][0], label or lines[0][1], chance], *([*line, ".5"] for line in lines[1:])]
        Path("wrong.csv").write_text("id,label,inclusion\n" + "\n".join(map(",".join, wrong)))
        run("judge", "judged.csv", "--human", "wrong.csv", code=2, says=message)


def test_rows_are_drawn_evenly_then_where_the_judge_errs_until_a_verdict(home: Path, run: Run) -> None:
    rng = np.random.default_rng(1)
    right = rng.random(900) < 0.97
    said = np.where(rng.random(900) < 0.93, right, ~right)
    rows = [f"q{i},answer {i},{'yes' if said[i] else 'no'}" for i in range(900)]
    Path("judged.csv").write_text("id,answer,score\n" + "\n".join(rows) + "\n")

    def fill(path: str) -> None:
        lines = [line.split(",") for line in Path(path).read_text().splitlines()]
        filled = [[*line[:-1], line[-1] or ("yes" if right[int(line[0][1:])] else "no")] for line in lines[1:]]
        Path(path).write_text("\n".join(",".join(line) for line in [lines[0], *filled]) + "\n")

    run("judge", "judged.csv", "--draw", 60, code=2, says="add -o to-label.csv")
    assert run("judge", "judged.csv", "--draw", 60, "-o", "a.csv", code=0).stdout == "a.csv: 60 rows to label\n"
    assert Path("a.csv").read_text().splitlines()[0] == "id,answer,inclusion,label"  # not what the judge says
    fill("a.csv")
    widths, names = [], "abcd"
    for known, following in itertools.pairwise(names):
        words = f"judge judged.csv --human {known}.csv --draw 70 -o {following}.csv --json"
        done = run(words, code=0, says=f"{following}.csv: 70 rows to label")
        fill(f"{following}.csv")
        score = json.loads(done.stdout)["scores"]["all"]
        assert score["low"] <= right.mean() <= score["high"]
        widths.append(score["high"] - score["low"])
    assert widths[1] < widths[0] / 1.8  # more than twice as many labels alone would bring
    chosen = [int(line.split(",")[0][1:]) for line in Path("b.csv").read_text().splitlines()[61:]]
    assert (~said[chosen]).mean() > 2 * (~said).mean()
    run("judge", "judged.csv", "--human", "b.csv", "--draw", 9, "-o", "c.csv", code=2, says="which has 200 labels")
    run("judge", "judged.csv", "--draw", 6, "-o", "few.csv", code=0)
    fill("few.csv")
    done = run("judge judged.csv --human few.csv --draw 9 -o more.csv", code=0, says="more.csv: 9 rows to label")
    assert "no scores yet: expected at least 10 human labels, got 6" in done.stderr
    assert len(Path("more.csv").read_text().splitlines()) == 16
    run("judge", "judged.csv", "--human", "few.csv", code=2, says="expected at least 10 human labels, got 6")
    score = json.loads(run("judge", "judged.csv", "--human", "d.csv", "--json", code=0).stdout)["scores"]["all"]
    whole = Path("d.csv").read_text().splitlines()
    old, new = whole[:201], whole[201:]  # of the last draw the half has no label yet: the rows lack it by chance
    Path("d.csv").write_text("\n".join([*old, *new[::2], *(line.rsplit(",", 1)[0] + "," for line in new[1::2])]) + "\n")
    half = json.loads(run("judge", "judged.csv", "--human", "d.csv", "--json", code=0).stdout)["scores"]["all"]
    assert half["low"] <= right.mean() <= half["high"]
    assert half["high"] - half["low"] > score["high"] - score["low"]
    head = [
        line.split(",") for line in whole
    ]  # what the file beside the table says of chances counts, and which rows were drawn
    Path("d.csv").write_text("\n".join(f"{line[0]},{line[-1]}" for line in head) + "\n")
    assert json.loads(run("judge", "judged.csv", "--human", "d.csv", "--json", code=0).stdout)["scores"]["all"] == score
    other = next(i for i in range(900) if f"q{i}" not in {line[0] for line in head})
    Path("d.csv").write_text("\n".join([*whole, f"q{other},answer {other},.3,yes"]) + "\n")
    run("judge", "judged.csv", "--human", "d.csv", code=2, says=f"rows that were drawn, got one of q{other}")
    Path("d.csv").write_text("\n".join(whole) + "\n")
    Path("flipped.csv").write_text(
        Path("judged.csv").read_text().replace("yes", "maybe").replace("no", "yes").replace("maybe", "no")
    )
    run("judge", "flipped.csv", "--human", "d.csv", code=2, says="none of these scores")
    Path("d.rows.json").unlink()
    run("judge", "judged.csv", "--human", "d.csv", "--draw", 9, "-o", "e.csv", code=2, says="put it beside the table")
    assert "270 human labels" in run("judge", "judged.csv", "--human", "d.csv", code=0).stdout
    run("judge", "judged.csv", "--human", "d.csv", "--seed", 1, code=2, says="--seed for a call without --draw")
