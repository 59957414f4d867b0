"""Answers with the scores of other programs: uqlm and lm-polygraph, and whether several sampled answers agree."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from calibrant._core.check import shown
from calibrant._core.constraints import Text, checked
from calibrant._core.paths import check_source
from calibrant._core.paths import shown as place_shown
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError, Remedy
from calibrant.language._json import json_object, lines_of, name_of, need, refuse_file, table_columns
from calibrant.language.log import Answers, Log, Response, features_of, groups_of, outcomes

_TEXTS = ("prompt", "response", "sampled_responses", "raw_sampled_responses", "raw_response", "id")


@checked
def read_uqlm(path: str | os.PathLike[str]) -> Log:
    """Return the answers that uqlm scored: ``results.to_df()`` as a table, or ``results.to_dict()`` as JSON.

    The id is the column ``id`` if there is one, else the number of the row from 0; every other column of numbers is a scorer,
    such as ``semantic_negentropy``.

    Args:
        path: ``.csv``, ``.parquet``, ``.jsonl`` or ``.json``.

    Raises:
        FileFormatError: If it holds no responses.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("scored.jsonl").write_text('{"prompt": "?", "response": "Paris", "exact_match": 0.8}\\n')
        >>> read_uqlm("scored.jsonl").responses[0].scores
        {'exact_match': 0.8}

    References:
        uqlm, ``UQResult.to_df`` and ``to_dict`` (prompts, responses, sampled_responses and one list for each scorer).
    """
    place = check_source(path)
    name = place_shown(place)
    if place.suffix == ".json":
        whole = json_object(place, what="results of uqlm", name="the results")
        lists = need(whole.get("data", whole), dict, name, "data")
        # to_dict names the lists prompts, responses; to_df drops the s, and keeps it in sampled_responses
        singular = {f"{key}s": key for key in _TEXTS}
        columns = {singular.get(key, key): need(values, list, name, key) for key, values in lists.items()}
        if len({len(values) for values in columns.values()}) > 1:
            raise refuse_file(name, "lists of equal length", "others", "write the results again")
    elif place.suffix == ".jsonl":
        rows = [line for _, line in lines_of(place, what="results of uqlm")]
        columns = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    else:
        columns = table_columns(place)
    if "response" not in columns:
        got = ", ".join(columns)
        raise refuse_file(name, "results of uqlm (prompt, response, scores)", got, "save results.to_df()")
    return Log(tuple(_uqlm_row(columns, row, name) for row in range(len(columns["response"]))), name)


def _uqlm_row(columns: Mapping[str, Sequence[Any]], row: int, place: str) -> Response:
    samples = columns.get("sampled_responses", [()] * (row + 1))[row]
    if isinstance(samples, str):  # as a CSV keeps a list
        try:
            samples = json.loads(samples)
        except ValueError:
            samples = _texts_of_literal(samples, f"{place}, row {row}")
    elif not isinstance(samples, Iterable | None):
        raise refuse_file(
            f"{place}, row {row}", "sampled_responses as a list of texts", f"{samples}", "save results.to_df()"
        )
    numbers = {
        key: float(values[row]) for key, values in columns.items()
        if key not in _TEXTS and isinstance(values[row], int | float) and math.isfinite(values[row])
    }  # fmt: skip
    identity = name_of(columns["id"][row]) if "id" in columns else str(row)
    return Response(identity, str(columns["response"][row]), samples=tuple(map(str, samples or ())), scores=numbers)


def _texts_of_literal(text: str, place: str) -> list[str]:
    """Return a list of texts as Python writes it, which is how a data frame saves one as CSV."""
    import ast

    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, list | tuple):
        remedy = "save the results as JSON lines or Parquet"
        raise refuse_file(place, "sampled_responses as a list", shown(text), remedy)
    return list(found)


@checked
def read_lm_polygraph(path: str | os.PathLike[str]) -> Log:
    """Return the answers of ``estimate_uncertainty`` of lm-polygraph, one JSON object a line: ``dataclasses.asdict(output)``.

    An estimator's score is minus its uncertainty, so that higher is surer. The id is the field ``id`` if there is one, else the
    number of the answer; several estimators of one answer are lines with the same ``input_text`` and ``generation_text``.

    Args:
        path: JSON lines; a manager's ``.man`` file holds pickled objects, which are not opened.

    Raises:
        FileFormatError: If it holds something else.

    Examples:
        >>> from pathlib import Path
        >>> line = (
        ...     '{"uncertainty": 1.5, "input_text": "?", "generation_text": "Paris", "estimator": "MeanTokenEntropy"}'
        ... )
        >>> _ = Path("uncertainty.jsonl").write_text(line)
        >>> read_lm_polygraph("uncertainty.jsonl").responses[0].scores
        {'MeanTokenEntropy': -1.5}

    References:
        lm-polygraph, ``UncertaintyOutput``.
    """
    place = check_source(path)
    if place.suffix == ".man":
        remedy = "write json.dumps(dataclasses.asdict(output)) for each"
        raise refuse_file(place_shown(place), "JSON lines", "a pickled manager", remedy)
    answers: dict[tuple[str, str], tuple[str, dict[str, float]]] = {}
    for where, line in lines_of(place, what="outputs of lm-polygraph"):
        value = line.get("uncertainty")
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, int | float) or isinstance(value, bool):
            got = f"the fields {', '.join(line)}" if value is None else shown(value)
            raise refuse_file(where, "one uncertainty for each answer", got, "estimate it of the whole sequence")
        key = str(line.get("input_text", "")), str(line.get("generation_text", ""))
        identity = name_of(line["id"]) if "id" in line else str(len(answers))
        _, scores = answers.setdefault(key, (identity, {}))
        # an uncertainty: less is better, so that its negative orders as a score does
        scores[str(line.get("estimator", "uncertainty"))] = -float(value)
    rows = (Response(identity, text, scores=scores) for (_, text), (identity, scores) in answers.items())
    return Log(tuple(rows), place_shown(place))


@checked
def scored(log: Answers, *, labels: Any = None, scorer: Text | None = None) -> Predictions:
    """Return predictions of two classes, incorrect (0) and correct (1), from another program's score of each answer.

    Scores that all lie in [0, 1] are taken as probabilities, others as log-odds: neither is calibrated, and every calibrator takes
    them, such as ``PlattScaling``. All scorers are features.

    Args:
        log: From ``read_uqlm`` or ``read_lm_polygraph``.
        labels: As in ``sequences``.
        scorer: Whose score to take, where there are several.

    Raises:
        InputError: If an answer, which is named, lacks the score.

    Examples:
        >>> from calibrant.language import Log, Response
        >>> scored(Log((Response("a", "Paris", scores={"p_true": 0.8}),)), labels=[1]).one_vs_rest(1).p
        tensor([0.8000], dtype=torch.float64)
    """
    names = list(dict.fromkeys(name for one in log for name in one.scores or {}))
    if (len(names) != 1) if scorer is None else (scorer not in names):
        listed = ", ".join(names)
        remedy = Remedy(f"name one by scorer: {listed}", command=f"name one by --scorer: {listed}")
        got = listed or "none" if scorer is None else shown(scorer)
        raise InputError(f"one scorer of {log.source}", got, remedy, argument="scorer")
    chosen = names[0] if scorer is None else scorer
    if lost := [one.id for one in log if chosen not in (one.scores or {})]:
        expected = f"a score {chosen!r} of every answer"
        raise InputError(expected, f"none of {lost[0]!r}", "leave it out", place=log.source)
    columns = {name: torch.tensor([(one.scores or {}).get(name, math.nan) for one in log], dtype=torch.float64)
               for name in names}  # fmt: skip
    values = columns[chosen]
    beside: dict[str, Any] = features_of(log) | {name: one for name, one in columns.items() if not one.isnan().any()}
    groups, truth = groups_of(log), outcomes(log, labels)
    # scores in [0, 1] are taken for probabilities, others for log-odds: a calibrator corrects both
    if bool(((values >= 0) & (values <= 1)).all()):
        return Predictions.from_binary_probs(values, truth, groups=groups, features=beside)
    return Predictions.from_binary_logits(values, truth, groups=groups, features=beside)


@checked
def sampled(log: Answers, *, labels: Any = None) -> Predictions:
    """Return predictions of two classes, incorrect (0) and correct (1), from how many sampled answers agree with an answer.

    Of n samples k agree (after case and punctuation at the ends are dropped), and the probability of class 1 is
    (k + ½) / (n + 1), which is never 0 or 1. Features: ``agreement`` (k / n), ``entropy`` (of the samples' distribution over
    distinct answers, nats), ``samples`` (n). Where the log has several answers to one question, as of several epochs, they are the
    samples, and the question's row is its most frequent answer.

    Args:
        log: With samples, or several answers to each question.
        labels: As in ``sequences``, by the id of the answer or the question.

    Raises:
        InputError: If an answer has no samples.

    Examples:
        >>> from calibrant.language import Log, Response
        >>> rows = sampled(Log((Response("a", "Paris", samples=("Paris.", "paris", "Lyon")),)), labels=[1])
        >>> rows.one_vs_rest(1).p, rows.features["agreement"]
        (tensor([0.6250], dtype=torch.float64), tensor([0.6667], dtype=torch.float64))

    References:
        Wang et al. 2023, Self-Consistency; Kuhn et al. 2023, Semantic Uncertainty (entropy over answers that mean the same).
    """
    log = _one_per_question(log)
    agreement, entropy, counts = [], [], []
    for one in log:
        if not one.samples:
            remedy = "log several answers to each question"
            raise InputError(f"sampled answers to {one.id!r}", "none", remedy, place=log.source)
        kinds = Counter(map(_normalized_answer, one.samples))
        n = len(one.samples)
        agreement.append(kinds[_normalized_answer(one.text)] / n)
        entropy.append(-math.fsum(k / n * math.log(k / n) for k in kinds.values()))
        counts.append(n)
    share, size = torch.tensor(agreement, dtype=torch.float64), torch.tensor(counts)
    beside = {"agreement": share, "entropy": torch.tensor(entropy, dtype=torch.float64), "samples": size}
    # half an imagined sample that agrees, half one that does not: of few samples no probability is 0 or 1
    p = (share * size + 0.5) / (size + 1)
    return Predictions.from_binary_probs(p, outcomes(log, labels), features={**features_of(log), **beside})


def _one_per_question(log: Log) -> Log:
    """Return the most frequent answer to each question that has several, with all of them as its samples."""
    if all(one.question is None for one in log):
        return log
    found: dict[str, list[Response]] = {}
    for one in log:
        found.setdefault(one.id if one.question is None else one.question, []).append(one)
    rows = []
    for name, answers in found.items():
        kinds = Counter(_normalized_answer(one.text) for one in answers)
        kept = next(one for one in answers if _normalized_answer(one.text) == kinds.most_common(1)[0][0])
        texts = tuple(one.text for one in answers)
        rows.append(
            Response(name, kept.text, target=kept.target, right=kept.right, features=kept.features, samples=texts)
        )
    return Log(tuple(rows), log.source)


def _normalized_answer(text: str) -> str:
    return " ".join(text.split()).strip(" .,;:!?\"'*`").casefold()
