"""MCGrad on the tables that benchmarks.multicalibration wrote: run by the Python of an environment that has it.

PYTHON benchmarks/multicalibration_peer.py FOLDER
"""

import json
import logging
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from mcgrad import methods
from multicalibration_memory import forget_peak, memory


def main() -> None:
    """Fit on every FOLDER/NAME-fit.csv, predict NAME-rest.csv and write NAME-peer.npz and times."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    folder, found = Path(sys.argv[1]), {}
    for path in sorted(folder.glob("*-fit.csv")):
        name = path.name.removesuffix("-fit.csv")
        fit, rest = (pd.read_csv(folder / f"{name}-{part}.csv", dtype=None) for part in ("fit", "rest"))
        names = [column for column in fit.columns if column.startswith("name_")]
        numbers = [column for column in fit.columns if column.startswith("number_")]
        for frame in (fit, rest):
            frame[names] = frame[names].astype(str)
        columns = {"categorical_feature_column_names": names, "numerical_feature_column_names": numbers}
        for _ in range(2 if not found else 1):  # twice at first: what is loaded at a first use is in no figure
            started, before = time.process_time(), forget_peak()
            model = methods.MCGrad(random_state=0)
            model.fit(fit, "p", "y", **columns)
            p = np.asarray(model.predict(rest, "p", **columns))
            seconds, extra = time.process_time() - started, memory("VmHWM") - before
        np.savez(folder / f"{name}-peer.npz", p=p)
        found[name] = {"cpu_s": round(seconds, 3), "extra_mib": round(extra, 1)}
    (folder / "peer.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
