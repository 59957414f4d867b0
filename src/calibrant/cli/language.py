"""``calibrant ingest`` and ``judge``: a language model's log as predictions, and a judge's scores corrected by human labels."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calibrant._core.paths import same_file, shown
from calibrant.cli._application import option, with_groups
from calibrant.cli._io import console, say, working
from calibrant.cli._options import AsJson, refuse_typed, typed_columns
from calibrant.errors import InputError, NoIntervalError

if TYPE_CHECKING:
    from calibrant.data.predictions import Predictions
    from calibrant.language import Log
    from calibrant.language.judged import Judged


# the options that have an effect, by the program that wrote the log and by what its answers are read as
OF_FORMAT = {
    "openai": ("skip_failed",),
    "vllm": ("skip_failed",),
    "lm-eval": ("filter_name", "model"),
    "inspect": ("scorer", "least"),
    "uqlm": ("scorer",),
    "lm-polygraph": ("scorer",),
}
OF_KIND = {
    "choices": ("options", "normalize", "missing"),
    "sequences": ("score",),
    "yes-no": ("missing",),
    "rating": ("low", "high", "missing"),
    "pairwise": ("options", "swapped", "missing"),
    "verbalized": ("scale",),
    "sampled": (),
    "scored": (),
}
Format = Literal["openai", "vllm", "lm-eval", "inspect", "uqlm", "lm-polygraph"]
Kind = Literal["choices", "sequences", "yes-no", "rating", "pairwise", "verbalized", "sampled", "scored"]


@dataclass(frozen=True)
class Program:
    """The program that wrote the log, and which of what it holds is read."""

    source: Format | None = option(None, "The program that wrote the log.", "--from")
    skip_failed: bool = option(False, "Leave out failed requests of a batch.", "--skip-failed")
    filter_name: str | None = option(None, "The harness's filter whose answers are read.", "--filter")
    model: str | None = option(None, "The model's name, which the harness's log does not hold.")
    scorer: str | None = option(None, "Inspect's scorer that says what is right, or whose score is taken.")
    least: float | None = option(None, "Inspect's score from which on an answer is right.")

    def read(self, path: str | os.PathLike[str]) -> Log:
        """Return the log in a file of this format."""
        from calibrant import language

        if self.source == "lm-eval":
            return language.read_lm_eval(path, filter=self.filter_name, model=self.model or "unknown")
        if self.source == "inspect":
            return language.read_inspect(path, scorer=self.scorer, least=self.least)
        if self.source == "uqlm":
            return language.read_uqlm(path)
        if self.source == "lm-polygraph":
            return language.read_lm_polygraph(path)
        return language.read_openai(path, skip_failed=self.skip_failed)


@dataclass(frozen=True)
class Answers:
    """What the answers are, and how they become predictions."""

    kind: Kind = option("choices", "What its answers are.", "--as")
    options: str | None = option(None, "A,B,C or 'positive=positive|pos,negative=negative|neg'.", metavar="NAMES")
    normalize: Literal["none", "characters", "bytes"] = option("none", "Divide scored options by their length.")
    missing: Literal["refuse", "bound", "drop"] = option("refuse", "For options not among the top tokens.")
    score: Literal["mean", "sum"] = option("mean", "Of a sequence's log-probabilities.")
    low: int = option(1, "A rating's lowest level.")
    high: int = option(5, "A rating's highest level.")
    swapped: str | None = option(None, "The judge's answers in the other order.", metavar="LOG")
    scale: int | None = option(None, "What stated whole numbers are out of, such as 100.")


def refuse_source_of_answers(source: str | None, kind: str) -> None:
    """Refuse options that another format or another kind of answer has, and a log of no format.

    Raises:
        InputError: If there are such.
    """
    if source is None:
        raise InputError("the program that wrote the log", "none", f"add --from {', '.join(OF_FORMAT)}: one of them")
    for chosen, owners, what in ((source, OF_FORMAT, "--from"), (kind, OF_KIND, "--as")):
        others = {name for names in owners.values() for name in names} - set(owners[chosen])
        refuse_typed(sorted(others), where=f"{what} {chosen}")


def maker_of(program: Program, answers: Answers, labels: Any) -> Callable[[Log], Predictions]:
    """Return what makes predictions of a log."""
    from calibrant import language

    kind = answers.kind
    settings = asdict(answers) | {
        "options": None if answers.options is None else _spellings_of_options(answers.options),
        "swapped": None if answers.swapped is None else program.read(answers.swapped),
    }
    own = {name: settings[name] for name in OF_KIND[kind]} | ({"scorer": program.scorer} if kind == "scored" else {})
    if kind == "pairwise":
        own = {name: value for name, value in own.items() if value is not None}
        other = own.pop("swapped", None)
        return lambda log: language.pairwise(
            log, None if other is None else _same_ids(other, log), labels=labels, **own
        )
    make: Callable[..., Predictions] = getattr(language, kind.replace("-", "_"))
    return lambda log: make(log, labels=labels, **own)


def _same_ids(other: Log, log: Log) -> Log:
    """Return the answers of ``other`` that ``log`` has too, so that a split has both orders of its questions."""
    wanted = set(log.ids)
    return other[[row for row, name in enumerate(other.ids) if name in wanted]] if len(log) < len(other) else other


def _spellings_of_options(text: str) -> dict[str, list[str]]:
    """Return option → spellings of "A,B" or "positive=positive|pos,negative=neg"."""
    made: dict[str, list[str]] = {}
    for part in text.split(","):
        name, _, spelled = part.partition("=")
        if not name.strip() or name.strip() in made:
            raise InputError("distinct names with commas between them for --options", f"{text!r}", "write A,B,C,D")
        made[name.strip()] = spelled.split("|") if spelled else [name]
    return made


SUFFIXES = (".npz", ".safetensors", ".parquet")


@with_groups
def ingest(
    log: Annotated[str, typer.Argument(help="The log: .jsonl, or .json of Inspect.")],
    output: Annotated[str, typer.Argument(metavar="OUT", help=f"Predictions: {', '.join(SUFFIXES)}.")],
    program: Program,
    answers: Answers,
    labels: str | None = option(None, "A table with the columns id and label.", metavar="FILE"),
    test: float | None = option(None, "Share of questions for the split test, by their ids; the rest is val."),
) -> None:
    """Write a language model's logged answers as predictions, which every other command reads.

    Choices and pairs become predictions over the options; sequences, judges' verdicts and stated confidences become the
    probability of being right (class 1). Without --labels the log's own targets and scores are the labels.

    Examples:

        calibrant ingest answers.jsonl answers.npz --from openai --options A,B,C,D --labels labels.csv --test .5

        calibrant ingest samples_arc_easy_2026-01-01T00-00-00.jsonl arc.npz --from lm-eval --normalize bytes

        calibrant ingest log.json right.npz --from inspect --as sequences --scorer match
    """
    refuse_source_of_answers(program.source, answers.kind)

    from calibrant import language
    from calibrant.data.splits import UNNAMED, save_predictions

    if answers.swapped is not None and same_file(answers.swapped, log):
        raise InputError(
            "the judge's answers in the other order for --swapped",
            f"the log itself, {shown(answers.swapped)}",
            "name the log of the other order, or leave --swapped out",
        )
    _check_split_target(output, test)
    make = maker_of(program, answers, None if labels is None else language.read_labels(labels))
    whole = program.read(log)
    parts = {UNNAMED: whole} if test is None else _divided(whole, test)
    splits = {name: make(part) for name, part in parts.items()}
    if len({data.classes for data in splits.values()}) > 1:
        got = [data.classes for data in splits.values()]
        raise InputError("as many options in val as in test", f"{got}", "leave --test out")
    save_predictions(output, splits)
    said = _count_rows_of_splits(splits) + ("; failed requests left out" if program.skip_failed else "")
    console(err=True).print(f"{shown(log)} written to {shown(output)}: {said}", style="dim")


def _check_split_target(output: str, test: float | None) -> None:
    """Refuse a format that is not written, or not with these splits, before any work is done."""
    from calibrant._core.check import check_number

    if Path(output).suffix not in SUFFIXES:
        raise InputError(
            f"OUT to end in {', '.join(SUFFIXES)}", f"{shown(output)}", "name it so, and use convert for more formats"
        )
    if test is not None:
        check_number(test, name="--test", low=0, high=1, open_low=True, open_high=True)
        if output.endswith(".parquet"):
            raise InputError(".npz or .safetensors for two splits", ".parquet", "name it so, or leave --test out")


def _divided(log: Log, share: float) -> dict[str, Log]:
    """Return the splits val and test, by a hash of each question, so that a longer log keeps the places of the answers it had."""

    def in_test(name: str) -> bool:
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < share * 2**64

    chosen = [in_test(one.id if one.question is None else one.question) for one in log]
    if len(set(chosen)) < 2:
        raise InputError(
            "questions for val and test", f"{len(log)} that fall in one", "choose another --test, or leave it out"
        )
    return {name: log[[row for row, one in enumerate(chosen) if one == (name == "test")]] for name in ("val", "test")}


def _count_rows_of_splits(splits: Mapping[str, Predictions]) -> str:
    import torch

    from calibrant.data.splits import UNNAMED

    parts = []
    for name, data in splits.items():
        words = f"{'' if name == UNNAMED else name + ' '}{len(data):,} rows of {data.classes} classes"
        words += "" if data.labels is not None else ", no labels"
        if data.features is not None and "other_mass" in data.features:
            other, bounded = (torch.as_tensor(data.features[column]) for column in ("other_mass", "bounded"))
            words += (
                f", {float(other.mean()):.1%} of the probability on other tokens (at most {float(other.max()):.1%})"
            )
            if rows := int((bounded > 0).sum()):
                words += f", {rows:,} rows with an option at its bound"
        parts.append(words)
    return "; ".join(parts)


OF_JUDGES = ("yes-no", "rating", "pairwise", "verbalized", "scored")


@dataclass(frozen=True)
class Asked:
    """What the judge's rows are, and which questions are asked of them."""

    scores: list[str] | None = option(None, "A table's column of scores; repeat for several judges.", metavar="COLUMN")
    ratings: str | None = option(None, "Scores and labels are ratings: 1-5.", "--ratings", metavar="LOW-HIGH")
    about: str | None = option(None, "id with system, or first and second, and columns for --by.", metavar="TABLE")
    by: list[str] | None = option(None, "The judge's bias by these columns, such as length.", metavar="COLUMNS")
    target: Literal["rows", "population"] = option("rows", "Of the rows of the log, or of questions like them.")


@dataclass(frozen=True)
class NextRows:
    """Which rows people shall label next."""

    draw: int | None = option(
        None, "Choose so many further rows to label, first evenly, then where the judge errs.", min=1
    )
    output: str | None = option(
        None, "The table to fill in, with the labels known: CSV.", "--output", "-o", metavar="FILE", needs="draw"
    )
    seed: int = option(0, "Same seed, same rows.", needs="draw")


@with_groups
def judge(
    log: Annotated[str, typer.Argument(help="A judge's log (with --from), or a table: id, system, score.")],
    program: Program,
    answers: Answers,
    asked: Asked,
    following: NextRows,
    human: str | None = option(None, "A table with the columns id and label.", metavar="LABELS"),
    as_json: AsJson = False,
) -> None:
    """Correct a judge's scores of systems by a few human labels: scores and ranking with intervals, and the judge's own bias.

    Label rows drawn by chance. A row with several labels has several annotators. A table of comparisons has the columns first and
    second; swapped is the judge's verdict with the answers in the other order.

    Examples:

        calibrant judge judged.csv --human labels.csv --by length

        calibrant judge judged.csv --human labels.csv --draw 140 -o to-label.csv

        calibrant judge judge.jsonl --from openai --as yes-no --about systems.csv --human labels.csv --json
    """
    if human is None and following.draw is None:
        expected = "--human, the labels that people gave, or --draw, which chooses rows to label"
        raise InputError(expected, "neither", "add --human: a table with the columns id and label")
    import numpy as np

    from calibrant.language import judge_audit, judge_rows
    from calibrant.language.judge_rows import even_before
    from calibrant.operate.audit.table import refuse_filled

    if following.draw is not None:
        if following.output is None:
            raise InputError("--output, the table to fill in", "none", "add -o to-label.csv")
        refuse_filled(following.output)
    with working("correcting"):
        judged = _judge_answers(log, program, answers, asked)
        labels, inclusion = (None, None) if human is None else judged.human(human)
        if following.draw is not None and following.output is not None:
            before = None if human is None or inclusion is None else judged.drawn_before(human)
            rows, chance = judge_rows(
                judged.judge, following.draw, human=labels, systems=judged.systems, inclusion=before,
                swapped=judged.swapped, seed=following.seed,
            )  # fmt: skip
            hidden = [*(asked.scores or ["score"]), "swapped"]
            seen = np.zeros(len(judged.judge), bool) if labels is None else np.any(labels >= 0, axis=1)
            before = even_before(np.asarray(seen), judged.systems) if before is None else before
            judged.write_rows(following.output, rows, chance, before=before, human=human, hidden=hidden)
            typer.echo(f"{following.output}: {len(rows):,} rows to label", err=labels is not None)
        if labels is None:
            return
        columns = {name: judged.column(name) for name in typed_columns(asked.by) or []}
        try:
            found = judge_audit(
                judged.judge, labels, systems=judged.systems, inclusion=inclusion, questions=judged.questions,
                by=columns, swapped=judged.swapped, target=asked.target,
            )  # fmt: skip
        except NoIntervalError as too_few:
            if following.draw is None:
                raise
            typer.echo(f"note: no scores yet: {too_few}", err=True)  # rows were chosen, which is what was asked for
            return
    say(found, as_json=as_json)


def _judge_answers(log: str, program: Program, answers: Answers, asked: Asked) -> Judged:
    from calibrant.language import read_judged
    from calibrant.language.judged import Judged

    if program.source is None:
        others = {name for names in (*OF_FORMAT.values(), *OF_KIND.values()) for name in names} | {"kind"}
        refuse_typed(sorted(others), where="a table", remedy="add --from, the program that wrote the log")
        judged = read_judged(log, scores=asked.scores or ("score",), scale=_scale(asked.ratings))
        return judged if asked.about is None else judged.with_columns(asked.about).samples_merged()
    refuse_typed(["scores"], where=f"--from {program.source}")
    refuse_source_of_answers(program.source, answers.kind)
    if answers.kind not in OF_JUDGES:
        raise InputError(
            f"a judge's answers as {', '.join(OF_JUDGES)}", f"--as {answers.kind}", "name one of these with --as"
        )
    if answers.missing == "drop":
        raise InputError("every row of the judge", "--missing drop", "write --missing bound")
    whole = program.read(log)
    judged = Judged.of_log(whole, maker_of(program, answers, None)(whole), compared=answers.kind == "pairwise")
    return (judged if asked.about is None else judged.with_columns(asked.about)).samples_merged()


def _scale(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, _, high = text.partition("-")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 1.0, 0.0
    if not -math.inf < ends[0] < ends[1] < math.inf:
        raise InputError("--ratings as LOW-HIGH", repr(text), "write --ratings 1-5")
    return ends
