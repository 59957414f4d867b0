"""Groups of people in the ACS employment data (Massachusetts) that PyPI's nannyml wheel carries: the record of the groups tutorial.

    python -m benchmarks.acs_groups nannyml-0.13.1-py3-none-any.whl [--record docs/results/acs-groups.json]

A model's scores for 68,785 people of 2015 (reference) and 208,892 of 2016 to 2018. On one random half of a year a temperature, an
affine map, a temperature and biases a group, and trees over the groups are fitted; the other half and the later years are
looked at, before and after.
The data are not part of this project: pip download --no-deps nannyml==0.13.1 fetches them (Apache-2.0; the survey is the U.S.
Census Bureau's).
"""

import argparse
import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import torch

from calibrant import Predictions
from calibrant.calibrators import BoostedScaling, Calibrator, GroupScaling, TemperatureScaling, VectorScaling
from calibrant.evaluate import compare, subgroups
from calibrant.metrics import ECE, NLL

RECORD = Path("docs/results/acs-groups.json")
FOLDER = "nannyml/datasets/data/employment_MA_"
COLUMNS = ("AGE", "SEX", "RAC1P", "CIT", "MAR", "DIS", "MIL", "SCHL")
PERIODS = (2015, 2016)
AGES = (18, 25, 35, 45, 55, 62, 67, 75)


def read(wheel: Path) -> dict[int, Predictions]:
    """Return the predictions of each year, with the columns as features."""
    with zipfile.ZipFile(wheel) as archive:

        def table(name: str) -> Any:
            return pyarrow.parquet.read_table(io.BytesIO(archive.read(f"{FOLDER}{name}.pq"))).to_pandas()

        reference, later, target = table("reference"), table("analysis"), table("analysis_target")
    later = later.merge(target, on="id")
    found = {}
    for frame in (reference, later):
        for year, part in frame.groupby("year"):
            features = {name: part[name].astype(str).to_numpy() for name in COLUMNS if name != "AGE"}
            features["AGE"] = np.digitize(part["AGEP"].to_numpy(), AGES)
            found[int(year)] = Predictions.from_binary_probs(
                part["predicted_probability"].to_numpy(), part["employed"].to_numpy().astype(int), features=features
            )
    return found


def figures(data: Predictions, *, depth: int = 1) -> dict[str, Any]:
    """Return log-loss, calibration error, and what the groups show."""
    found = subgroups(data, COLUMNS, depth=depth)
    large = [row for row in found.rows if row.n > 5000]
    return {
        "n": len(data),
        "NLL": round(NLL()(data), 5),
        "ECE": round(ECE()(data.one_vs_rest(1)), 5),
        "groups": len(found.rows),
        "flagged": sum(row.p_adjusted < 0.05 for row in found.rows),
        "worst": {
            "group": found.rows[0].group,
            "gap": round(found.rows[0].gap, 4),
            "p_adjusted": found.rows[0].p_adjusted,
        },
        "largest_gap": max(round(abs(row.gap), 4) for row in found.rows),
        "worst_group_ece": max(round(row.ece, 4) for row in found.rows),
        "groups_over_5000": len(large),
        "of_them_outside": [row.group for row in large if row.all_low > 0 or row.all_high < 0],
    }


def main() -> None:
    """Fit on one half of a year, look at the other half and the later years, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--record", type=Path, default=RECORD)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    years = read(chosen.wheel)
    record: dict[str, Any] = {"columns": COLUMNS, "fits": [fitted_on(years, period) for period in PERIODS]}
    chosen.record.write_text(json.dumps(record, indent=1) + "\n")


def fitted_on(years: dict[int, Predictions], period: int) -> dict[str, Any]:
    """Return what fits on one random half of a year's rows do to the other half, and to the years after."""
    order = torch.randperm(len(years[period]), generator=torch.Generator().manual_seed(0))
    half, rest = (years[period][rows] for rows in order.chunk(2))
    held: dict[str, Predictions] = {f"{period}, other half": rest}
    held |= {str(year): data for year, data in years.items() if year > period}
    methods: dict[str, Calibrator | None] = {"as it is": None}
    record: dict[str, Any] = {"period": period, "fitted_on": len(half), "seconds": {}, "figures": {}}
    for name, method in (
        ("temperature", TemperatureScaling()),
        ("vector", VectorScaling()),
        ("groups", GroupScaling(COLUMNS)),
        ("boosted", BoostedScaling(COLUMNS)),
    ):
        started = time.process_time()
        methods[name] = method.fit(half)
        record["seconds"][name] = round(time.process_time() - started, 2)
    grouped = methods["groups"]
    record["learned"] = {name: one.learned() for name, one in methods.items() if one is not None}
    record["strength_used"] = str(grouped.strength_used) if isinstance(grouped, GroupScaling) else None
    for where, data in held.items():
        after = {
            name: data if one is None else data.calibrated_by(one, allow_fit_rows=True) for name, one in methods.items()
        }
        record["figures"][where] = {name: figures(made) for name, made in after.items()}
        for name in ("groups", "boosted"):
            test = compare(after["vector"], after[name], metrics=[NLL()]).rows[0]
            ends = {"difference": test.difference, "low": test.low or 0.0, "high": test.high or 0.0}
            record["figures"][where][f"log-loss, {name} less vector"] = {k: round(end, 5) for k, end in ends.items()}
        print(period, where, json.dumps(record["figures"][where]), flush=True)
    return record


if __name__ == "__main__":
    main()
