"""Logs of lm-evaluation-harness: the ``samples_TASK_*.jsonl`` that ``--log_samples`` writes."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from calibrant._core.constraints import Text, checked
from calibrant._core.paths import check_source, shown
from calibrant.errors import Remedy
from calibrant.language._json import lines_of, name_of, need, need_log_prob, refuse_file
from calibrant.language.log import Log, Option, Response

_WHAT = "samples of lm-evaluation-harness"
_RIGHT = ("exact_match", "acc")  # per-sample metrics that are 0 or 1
_NAME = re.compile(r"samples_(?P<task>.+)_\d{4}-\d\d-\d\dT[\d.:-]+$")


@checked
def read_lm_eval(path: str | os.PathLike[str], *, filter: Text | None = None, model: Text = "unknown") -> Log:
    """Return the answers of a ``samples_TASK_DATE.jsonl`` of lm-evaluation-harness.

    For multiple-choice tasks these are the options with their log-likelihoods; the true option is ``target``, an index or an
    option's text. For generation tasks they are texts, correct or not by ``exact_match`` or ``acc``. The id is ``doc_id``; the
    feature ``task`` is read from the file's name.

    Args:
        path: JSON lines in UTF-8.
        filter: Whose answers to read if the task has several filters (such as "strict-match"): each sample is then logged once
            per filter.
        model: The feature ``model`` of every row, which is not in the log.

    Raises:
        FileFormatError: If a line, which is named, is not such a sample.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> asked = {
        ...     "gen_args_0": {"arg_0": "2 + 2 =", "arg_1": " 4"},
        ...     "gen_args_1": {"arg_0": "2 + 2 =", "arg_1": " 5"},
        ... }
        >>> sample = {
        ...     "doc_id": 0,
        ...     "target": "0",
        ...     "arguments": asked,
        ...     "filtered_resps": [["-0.3", "True"], ["-2.5", "False"]],
        ... }
        >>> _ = Path("samples_sums_2026-01-01T00-00-00.0.jsonl").write_text(json.dumps(sample))
        >>> read_lm_eval("samples_sums_2026-01-01T00-00-00.0.jsonl").responses[0].options
        (Option(text=' 4', log_prob=-0.3), Option(text=' 5', log_prob=-2.5))

    References:
        lm-evaluation-harness, ``--log_samples`` (``doc_id``, ``target``, ``arguments``, ``filtered_resps``, ``filter``).
    """
    path = check_source(path)
    stem = path.name.removesuffix(".jsonl")
    named = _NAME.match(stem)
    features = {"model": model, "task": named["task"] if named else stem.removeprefix("samples_")}
    found: list[Response] = []
    seen: dict[str, str] = {}
    lines = list(lines_of(path, what=_WHAT))
    index = _targets_are_indices([line for _, line in lines])
    for place, line in lines:
        if "doc_id" not in line or "arguments" not in line:
            raise refuse_file(
                place, f"{_WHAT} (doc_id, arguments, resps)", f"the fields {', '.join(line)}", "log with --log_samples"
            )
        own = str(line.get("filter", "none"))
        if filter is not None and own != filter:
            seen.setdefault(own, place)
            continue
        found.append(_response_of_line(line, place, features, index=index))
        if filter is None and len({*seen, own}) > 1:
            got = f"those of {own!r} and {next(iter(seen))!r}"
            remedy = Remedy("name one by filter", command="name one by --filter")
            raise refuse_file(place, "the answers of one filter", got, remedy)
        seen.setdefault(own, place)
    if not found:
        got = f"those of {', '.join(map(repr, seen))}"
        raise refuse_file(shown(path), f"answers of the filter {filter!r}", got, "name one of these")
    return Log(tuple(found), shown(path))


def _targets_are_indices(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether targets that could be an option's index or its text, as 1 of the options "1" to "4", are indices.

    The log's own ``acc`` says whether the option of the largest likelihood is the target, which only one reading agrees with.
    """
    agreement = {True: 0, False: 0}
    for line in lines:
        if not {"arguments", "filtered_resps", "target"} <= line.keys() or line.get("acc") not in (0, 1):
            continue
        texts = [text.strip() for text in _continuations(line["arguments"], "")]
        scored = [_likelihood(one) for one in line["filtered_resps"]]
        name = (_target_text(line["target"]) or "").strip()
        if name in texts and name.isdecimal() and int(name) < len(texts) == len(scored) and None not in scored:
            # the option that the model preferred: with `acc` it tells which reading of the target is meant
            best = max(range(len(scored)), key=[float(one) for one in scored].__getitem__)
            for index, target in ((True, int(name)), (False, texts.index(name))):
                agreement[index] += (best == target) == bool(line["acc"])
    return agreement[True] > agreement[False]


def _response_of_line(line: Mapping[str, Any], place: str, features: Mapping[str, str], *, index: bool) -> Response:
    texts = _continuations(line["arguments"], place)
    answers = need(line.get("filtered_resps", line.get("resps")), list, place, "filtered_resps")
    # multiple choice has one likelihood for each request, generation has texts
    scored = [_likelihood(one) for one in answers]
    facts: dict[str, Any] = {"id": name_of(line["doc_id"]), "features": features}
    if all(one is not None for one in scored) and len(scored) == len(texts) and len(texts) > 1:
        if len(set(texts)) < len(texts):
            raise refuse_file(
                place, "distinct options", f"{texts[0]!r} twice", "log without acc_mutual_info, which scores each twice"
            )
        values = [need_log_prob(one, place, "the log-likelihood of an option") for one in scored]
        options = tuple(Option(text, value) for text, value in zip(texts, values, strict=True))
        return Response(
            options=options,
            target=_target_option(line.get("target"), options, index=index),
            right=_right_in_line(line, place),
            **facts,
        )
    return Response(
        text=_text(answers, place), target=_target_text(line.get("target")), right=_right_in_line(line, place), **facts
    )


def _continuations(arguments: Any, place: str) -> list[str]:
    """Return the second argument of each request: the scored text, or a generation's settings; in both layouts of the log."""
    if isinstance(arguments, Mapping):  # {"gen_args_0": {"arg_0": question, "arg_1": " answer"}, …}
        pairs = [list(need(one, dict, place, "arguments").values()) for one in arguments.values()]
    else:
        pairs = [list(need(one, list, place, "arguments")) for one in need(arguments, list, place, "arguments")]
    return [str(pair[1]) if len(pair) > 1 else "" for pair in pairs]


def _likelihood(answer: Any) -> Any:
    """Return the log-likelihood of ["-1.2", "False"], or of [["-1.2", "False"]]; None for text."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, list) and len(answer) == 2 and str(answer[1]) in ("True", "False"):
        return answer[0]
    return None


def _target_option(target: Any, options: tuple[Option, ...], *, index: bool) -> str | None:
    """Return the text of the true option, given its text, or its index (first where ``index``); None if it is neither."""
    name = _target_text(target)
    texts = [one.text.strip() for one in options]
    if name is None or (name.strip() in texts and not index):
        return None if name is None else name.strip()
    if name.strip().isdecimal() and int(name) < len(texts):
        return texts[int(name)]
    return name.strip() if name.strip() in texts else None


def _target_text(target: Any) -> str | None:
    return None if target is None or isinstance(target, list | dict) else str(target)


def _text(answers: Any, place: str) -> str:
    first = answers[0] if answers else ""
    first = first[0] if isinstance(first, list) and first else first
    if not isinstance(first, str):
        raise refuse_file(
            place, "options with log-likelihoods, or a text", repr(first), "read multiple-choice or generation tasks"
        )
    return first


def _right_in_line(line: Mapping[str, Any], place: str) -> bool | None:
    for name in _RIGHT:
        if (value := line.get(name)) is not None:
            if value not in (0, 1):
                remedy = Remedy("pass labels of your own", command="pass --labels")
                raise refuse_file(place, f"{name} to be 0 or 1", repr(value), remedy)
            return bool(value)
    return None
