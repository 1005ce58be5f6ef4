"""Units whose data are in memory: one by one here, through files elsewhere."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headscape.records import load_record
from headscape.storage import read_arrays, write_arrays
from headscape.studies.work.handing import AHEAD, Handing
from headscape.studies.work.how import Work


@dataclass(frozen=True)
class Part:
    values: np.ndarray


def double(path: Path, given: Part | Path, factor: int) -> None:
    part = load_record(Part, given) if isinstance(given, Path) else given
    write_arrays(path, {"values": factor * part.values, "by_file": np.array([isinstance(given, Path)])})


def run(folder: Path, n: int, jobs: int) -> list[int]:
    """Hand out n units; returns how many are done after each."""
    work, done = Work.of(jobs=jobs), []
    with Handing(double, folder, work, work.stage("doubling", n), (2,)) as handing:
        for i in range(n):
            handing.add(f"part {i}", folder / f"{i}.safetensors", Part(np.full(3, float(i))))
            done.append(len(list(folder.glob("*.safetensors"))))
    return done


def test_in_this_process_each_is_run_at_once(tmp_path):
    assert run(tmp_path / "here", 3, jobs=1) == [1, 2, 3]
    for i in range(3):
        found = read_arrays(tmp_path / "here" / f"{i}.safetensors")[0]
        assert found["values"].tolist() == [2.0 * i] * 3 and not found["by_file"][0]


def test_other_processes_get_files_which_are_gone_after_it(tmp_path):
    n = AHEAD + 2
    assert run(tmp_path / "apart", n, jobs=2) == [0] * (AHEAD - 1) + [AHEAD] * 3
    found = [read_arrays(tmp_path / "apart" / f"{i}.safetensors")[0] for i in range(n)]
    assert [one["values"][0] for one in found] == [2.0 * i for i in range(n)] and all(
        one["by_file"][0] for one in found
    )
    assert len(list((tmp_path / "apart").iterdir())) == n
