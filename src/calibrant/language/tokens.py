"""The class of each token (word, number, punctuation …), as a feature to calibrate by."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import as_tensor, refuse, shown
from calibrant._core.constraints import checked

_SPACES = re.compile(r"^[Ġ▁ ]+")
_CONTROL = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")


@checked
def token_classes(vocabulary: Sequence[str], tokens: Any) -> NDArray[np.str_]:
    """Return the class (N,) of each token: "word", "part", "number", "punctuation", "space" or "control".

    A "word" has letters after a space, so a word begins with it; a "part" has letters without a space: it continues a word or
    begins a line; "control" are tokens such as ``<|im_end|>``. To calibrate next-token predictions, pass the most probable token,
    which is known when predicting. The characters by which tokenizers represent a space (Ġ, ▁) and a newline (Ċ) are
    recognised.

    Args:
        vocabulary: The text of every token, in order of its id.
        tokens: Ids (N,).

    Raises:
        InputError: If an id is not in the vocabulary, for example because the tokenizer is another model's.

    Examples:
        >>> vocabulary = ["<|end|>", "Ġthe", "ing", "Ġ12", ".", "Ċ"]
        >>> token_classes(vocabulary, [1, 2, 3, 4, 5, 0]).tolist()
        ['word', 'part', 'number', 'punctuation', 'space', 'control']
    """
    if isinstance(vocabulary, str) or not isinstance(vocabulary, Sequence) or not vocabulary:
        remedy = "pass the texts of all tokens, such as tokenizer.convert_ids_to_tokens(range(K))"
        raise refuse("a vocabulary as a list of texts", shown(vocabulary), remedy)
    for place, text in enumerate(vocabulary):
        if not isinstance(text, str):
            raise refuse("a text for every token", f"{shown(text)} for token {place}", "name each token")
    ids = as_tensor(tokens, name="tokens")
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise refuse("ids of tokens (N,) as integers", f"{ids.dtype} {tuple(ids.shape)}", "flatten them")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(vocabulary):
        got = f"{int(ids.min())} … {int(ids.max())}"
        remedy = "use the tokenizer of the model that gave them"
        raise refuse(f"ids below the vocabulary's {len(vocabulary):,} tokens", got, remedy)
    kinds = np.array([_token_class(text) for text in vocabulary])
    found: NDArray[np.str_] = kinds[ids.cpu().numpy().astype(np.int64)]
    return found


def _token_class(text: str) -> str:
    bare = _SPACES.sub("", text)
    if not bare.strip() or not bare.strip("Ċċĉ"):
        return "space"
    if _CONTROL.fullmatch(bare):
        return "control"
    if any(letter.isdigit() for letter in bare):
        return "number"
    if any(letter.isalpha() for letter in bare):
        return "word" if bare != text else "part"
    return "punctuation"
