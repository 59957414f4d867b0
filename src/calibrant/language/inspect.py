"""Logs of Inspect (UK AI Security Institute): an evaluation in one ``.json`` file."""

import os
from collections.abc import Mapping
from typing import Any

from calibrant._core.constraints import Real, Text, checked
from calibrant._core.paths import check_source, shown
from calibrant.errors import Remedy
from calibrant.language._json import json_object, name_of, need, refuse_file
from calibrant.language.log import Log, Response, Token
from calibrant.language.openai import tokens_of

_VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # correct, partly correct, incorrect, no answer


@checked
def read_inspect(path: str | os.PathLike[str], *, scorer: Text | None = None, least: Real | None = None) -> Log:
    """Return the answers of an Inspect evaluation log in JSON; ``inspect log convert --to json`` converts an ``.eval`` file.

    Scores are C (1), P (½), I and N (0), or numbers. Tokens are read from ``output.choices[0].logprobs``, if the run logged them
    (``--logprobs --top-logprobs 20``). The id is the sample's; with several epochs it is ``ID/EPOCH``, and the epochs of a sample
    are one group (``groups``) of the predictions. Features are ``model`` and ``task``.

    Args:
        path: One JSON object in UTF-8.
        scorer: Name of the scorer to use, if there are several.
        least: Lowest score of a correct answer; None accepts only scores of 0 and 1.

    Raises:
        FileFormatError: If it is not such a log, or a sample's score is neither 0 nor 1 and ``least`` is not given.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> sample = {
        ...     "id": 1,
        ...     "epoch": 1,
        ...     "output": {"completion": "Paris", "choices": []},
        ...     "scores": {"match": {"value": "C"}},
        ... }
        >>> log = {"version": 2, "eval": {"task": "capitals", "model": "m"}, "samples": [sample]}
        >>> _ = Path("log.json").write_text(json.dumps(log))
        >>> [(one.id, one.right) for one in read_inspect("log.json")]
        [('1', True)]

    References:
        Inspect documentation, log file format (``EvalLog``, ``EvalSample``, ``Score``) and scorers (values C, I, P, N).
    """
    path = check_source(path)
    place = shown(path)
    if path.suffix == ".eval":
        remedy = "run: inspect log convert --to json --output-dir json LOG"
        raise refuse_file(place, "an Inspect log in JSON", "an .eval archive", remedy)
    whole = json_object(path, what="an Inspect log in JSON", name="the log")
    if "eval" not in whole:
        got = f"the fields {', '.join(whole)}"
        raise refuse_file(place, "an Inspect log (eval, samples)", got, "check which program wrote the log")
    samples = need(whole.get("samples") or [], list, place, "samples")
    if not samples:
        raise refuse_file(place, "samples", "none", "run without --no-log-samples")
    about = need(whole["eval"], dict, place, "eval")
    features = {name: name_of(about.get(name) or "unknown") for name in ("model", "task")}
    rows = [need(one, dict, f"{place}, sample {number}", "a sample") for number, one in enumerate(samples, start=1)]
    # several epochs answer each question several times: ids then need the epoch, and the question is the group
    epochs = {one.get("epoch", 1) for one in rows} != {1}
    return Log(tuple(_response(one, place, features, epochs, scorer, least) for one in rows), place)


def _response(
    sample: Mapping[str, Any],
    file: str,
    features: Mapping[str, str],
    epochs: bool,
    scorer: str | None,
    least: float | None,
) -> Response:
    question = name_of(sample.get("id", "?"))
    name = f"{question}/{sample.get('epoch', 1)}" if epochs else question
    place = f"{file}, sample {name}"
    output = need(sample.get("output") or {}, dict, place, "output")
    target = sample.get("target")
    target = target[0] if isinstance(target, list) and len(target) == 1 else target
    return Response(
        name,
        str(output.get("completion") or ""),
        _tokens(output, place),
        target=target if isinstance(target, str) else None,
        right=_right(sample, place, scorer, least),
        features=features,
        question=question if epochs else None,
    )


def _tokens(output: Mapping[str, Any], place: str) -> tuple[Token, ...]:
    choices = need(output.get("choices") or [], list, place, "choices")
    kept = need(choices[0], dict, place, "a choice").get("logprobs") if choices else None
    return () if kept is None else tokens_of(need(kept, dict, place, "logprobs").get("content") or [], place)


def _right(sample: Mapping[str, Any], place: str, scorer: str | None, least: float | None) -> bool | None:
    scores = need(sample.get("scores") or {}, dict, place, "scores")
    if not scores and scorer is None:
        return None
    if scorer is None and len(scores) > 1:
        remedy = Remedy("name one by scorer", command="name one by --scorer")
        raise refuse_file(place, "one scorer", ", ".join(scores), remedy)
    chosen = scorer if scorer is not None else next(iter(scores))
    if chosen not in scores:
        got = f"those of {', '.join(scores) or 'none'}"
        raise refuse_file(place, f"a score of {chosen!r}", got, "name one of these")
    value = need(scores[chosen], dict, place, "a score").get("value")
    number = _VALUES.get(value) if isinstance(value, str) else value
    if not isinstance(number, int | float):
        remedy = Remedy("name another scorer, or pass labels", command="name another --scorer, or pass --labels")
        raise refuse_file(place, f"the score of {chosen!r} as C, I, P, N or a number", repr(value), remedy)
    if least is None and number not in (0, 1):
        remedy = Remedy("pass least, from which on it is right", command="add --least, from which on it is right")
        raise refuse_file(place, f"the score of {chosen!r} as right or wrong", repr(value), remedy)
    return bool(number >= (1 if least is None else least))
