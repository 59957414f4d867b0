"""Write Magika's probabilities of this machine's files, labelled by their extension: runs where magika is installed.

    python score_magika_files.py FOLDER MOST_A_TYPE OUT.npz

A file's label is the one content type of Magika's that its extension belongs to, so that labels are as noisy as extensions
are. Equal contents count once; ``message`` is their hash. Files are read one at a time and in batches of 64.
"""

import hashlib
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from magika import Magika

_LARGEST, _BATCH, _MOST_SEEN = 1 << 20, 64, 400_000


def candidates(home: str, label_of: dict[str, str], most: int) -> list[tuple[Path, str, str]]:
    """Return path, label and content hash of at most ``most`` files a type."""
    count: Counter[str] = Counter()
    seen: set[str] = set()
    found: list[tuple[Path, str, str]] = []
    visited = 0
    for folder, folders, names in os.walk(home):
        folders.sort()
        for name in sorted(names):
            visited += 1
            label = label_of.get(name.rsplit(".", 1)[-1].lower()) if "." in name[1:] else None
            path = Path(folder, name)
            if label is None or count[label] >= most or path.is_symlink() or not path.is_file():
                continue
            if not 0 < path.stat().st_size <= _LARGEST:
                continue
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest not in seen:
                seen.add(digest)
                count[label] += 1
                found.append((path, label, digest))
        if visited > _MOST_SEEN:
            break
    return found


def main() -> None:
    model = Magika()
    names = [str(label) for label in model._model_config.target_labels_space]
    owners: dict[str, set[str]] = defaultdict(set)
    for label, info in model._cts_infos.items():
        for extension in info.extensions:
            owners[extension.lower()].add(str(label))
    label_of = {extension: min(types) for extension, types in owners.items() if len(types) == 1 and min(types) in names}
    rows, labels, hashes = [], [], []
    files = candidates(sys.argv[1], label_of, int(sys.argv[2]))
    for start in range(0, len(files), _BATCH):
        batch = []
        for path, label, digest in files[start : start + _BATCH]:
            result, features = model._get_result_or_features_from_path(path)
            if result is None:  # else the file is too short for the model
                batch.append((path, features))
                labels.append(label)
                hashes.append(digest)
        if batch:
            rows.append(np.asarray(model._get_raw_predictions(batch), dtype=np.float64))
    probs = np.concatenate(rows)
    np.savez(sys.argv[3], probs=probs, names=np.array(names), label=np.array(labels), message=np.array(hashes))


main()
