"""Logs of OpenAI's API, and of vLLM and other servers with its format: one response per line."""

import math
import os
from collections.abc import Mapping
from typing import Any

from calibrant._core.constraints import checked
from calibrant._core.paths import check_source, shown
from calibrant.errors import Remedy
from calibrant.language._json import lines_of, name_of, need, need_log_prob, refuse_file
from calibrant.language.log import Log, Response, Token

_WHAT = "responses of chat/completions or completions"
_SKIP = Remedy("pass skip_failed=True to leave such lines out", command="add --skip-failed to leave such lines out")


@checked
def read_openai(path: str | os.PathLike[str], *, skip_failed: bool = False) -> Log:
    """Return the answers of a file of API responses, one JSON object per line.

    A line is a response of ``chat/completions`` or ``completions``, as sent by OpenAI and vLLM, or a line of the batch API's
    output file, which contains it as ``response.body``. The id is ``custom_id`` if there is one, else the response's ``id``, else
    the line's number. A response with several choices becomes several answers with ids ``ID/0``, ``ID/1`` …, which are one group
    (``groups``) of the predictions. The feature ``model`` is the response's.

    Args:
        path: JSON lines in UTF-8.
        skip_failed: Leave out lines of the batch API that contain an error in place of a response, instead of refusing them.

    Raises:
        FileFormatError: If a line, which is named, is not such a response, or is a failed request.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> token = {
        ...     "token": " A",
        ...     "logprob": -0.2,
        ...     "top_logprobs": [{"token": " A", "logprob": -0.2}, {"token": "B", "logprob": -2.0}],
        ... }
        >>> choice = {"index": 0, "message": {"content": " A"}, "logprobs": {"content": [token]}}
        >>> _ = Path("log.jsonl").write_text(json.dumps({"id": "q1", "model": "m", "choices": [choice]}))
        >>> read_openai("log.jsonl").responses[0].tokens[0].top
        {' A': -0.2, 'B': -2.0}

    References:
        OpenAI API reference, chat/completions (``logprobs``, ``top_logprobs``), completions, and batch output; vLLM's
        OpenAI-compatible server.
    """
    path = check_source(path)
    found: list[Response] = []
    for place, line in lines_of(path, what=_WHAT):
        body, name = _body(line, place)
        if body is None:
            if skip_failed:
                continue
            raise refuse_file(place, "a response", f"a failed request ({name})", _SKIP)
        found += _responses(body, place, name or name_of(body.get("id") or len(found)))
    if not found:
        raise refuse_file(shown(path), "a response", "failed requests alone", "check the batch's errors")
    return Log(tuple(found), shown(path))


def _body(line: Mapping[str, Any], place: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return a line's response and its custom id; for a failed request None and the reason."""
    # a bare response of the API; else a line of the batch interface around it
    if "custom_id" not in line and "response" not in line:
        return line, ""
    name = name_of(line.get("custom_id") or "")
    if line.get("error"):
        return None, str(line["error"])
    answer = need(line.get("response"), dict, place, "response")
    body = need(answer.get("body"), dict, place, "response.body")
    if answer.get("status_code", 200) != 200:
        return None, f"status {answer['status_code']}"
    return body, name


def _responses(body: Mapping[str, Any], place: str, name: str) -> list[Response]:
    if "choices" not in body and "output" in body:
        raise refuse_file(
            place, f"a response with choices ({_WHAT})", "one of the responses API", "log chat/completions"
        )
    choices = need(body.get("choices"), list, place, "choices")
    if not choices:
        raise refuse_file(place, "at least one choice", "none", "drop the line")
    features = {"model": name_of(body.get("model") or "unknown")}
    made = []
    for number, one in enumerate(choices):
        choice = need(one, dict, place, "a choice")
        own = f"{name}/{number}" if len(choices) > 1 else name
        text, tokens = _answer(choice, place)
        made.append(Response(own, text, tokens, features=features, question=name if len(choices) > 1 else None))
    return made


def _answer(choice: Mapping[str, Any], place: str) -> tuple[str, tuple[Token, ...]]:
    """Return text and tokens of a choice of a chat or a text completion."""
    kept = choice.get("logprobs")
    kept = {} if kept is None else need(kept, dict, place, "logprobs")
    if "message" in choice:
        message = need(choice["message"], dict, place, "message")
        text = message.get("content") or ""
        return need(text, str, place, "content"), tokens_of(kept.get("content") or [], place)
    if "text" not in choice:
        raise refuse_file(
            place, f"a choice with message or text ({_WHAT})", "neither", "log whole responses, not streamed pieces"
        )
    return need(choice["text"], str, place, "text"), tokens_of(_completion_content(kept, place), place)


def tokens_of(content: Any, place: str) -> tuple[Token, ...]:
    """Return the tokens of ``logprobs.content`` of a chat completion."""
    made = []
    for one in need(content, list, place, "logprobs.content"):
        token = need(one, dict, place, "a token")
        top: dict[str, float] = {}
        for rival in token.get("top_logprobs") or []:
            other = need(rival, dict, place, "top_logprobs")
            name = need(other.get("token"), str, place, "token")
            number = need_log_prob(other.get("logprob"), place, "the logprob of a top token")
            # of two with one spelling the more probable is kept, and a missing log-probability is left out
            if number > top.get(name, -math.inf):
                top[name] = number
        value = need_log_prob(token.get("logprob"), place, "logprob")
        made.append(Token(need(token.get("token"), str, place, "token"), value, top))
    return tuple(made)


def _completion_content(kept: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """Return ``logprobs`` of a text completion, which are parallel lists, as ``logprobs.content`` of a chat completion."""
    texts = need(kept.get("tokens") or [], list, place, "logprobs.tokens")
    values = need(kept.get("token_logprobs") or [], list, place, "logprobs.token_logprobs")
    # lists of one length, a token each; without top_logprobs there are the tokens' own alone
    tops = need(kept.get("top_logprobs") or [None] * len(texts), list, place, "logprobs.top_logprobs")
    if not len(texts) == len(values) == len(tops):
        got = f"{len(texts)}, {len(values)} and {len(tops)}"
        raise refuse_file(place, "as many tokens as log-probabilities", got, "write the log again")
    if values and values[0] is None:
        raise refuse_file(
            place,
            "log-probabilities of the answer",
            "none for its first token",
            "ask without echo, which logs the prompt too",
        )
    rivals = ({} if top is None else need(top, dict, place, "top_logprobs") for top in tops)
    return [
        {"token": text, "logprob": value, "top_logprobs": [{"token": name, "logprob": of} for name, of in top.items()]}
        for text, value, top in zip(texts, values, rivals, strict=True)
    ]
