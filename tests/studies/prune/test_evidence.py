"""What the organize study of a run adds: entropies, and the same measure on trees that know nothing."""

import shutil

import numpy as np
import pytest

import headscape as hs
from headscape.pruning.evidence import Evidence
from headscape.studies.prune.evidence import add_organized, control_entropies
from headscape.studies.work.folder import newest_by_block
from headscape.wavelets.entropy import head_entropies


def test_controls_are_the_same_measure_on_other_trees(run):
    captured = hs.open_capture(run)
    organized = hs.open_result(run, "organize")
    found = control_entropies(captured, organized)
    natural = [
        head_entropies(X, [hs.PartitionTree.dyadic(n) for n in X.shape[:2]])["l1_all"].to_numpy() for X in captured
    ]
    np.testing.assert_allclose(found["l1_all_natural"], np.mean(natural, axis=0))
    assert not np.allclose(found["l1_all_random"], organized.to_frame()["l1_all"])


def test_the_newest_study_of_the_same_block_is_taken(run, tmp_path):
    captured = hs.open_capture(run)
    organized = hs.open_result(run, "organize")
    evidence = Evidence(captured.heads())
    assert add_organized(evidence, captured) == newest_by_block(hs.Run.open(run), "organize")[-1].path.name
    np.testing.assert_array_equal(evidence.column("l1_all"), organized.heads["l1_all"])
    np.testing.assert_array_equal(evidence.distances, organized.distances)
    assert evidence.tree == organized.tree
    shutil.copytree(run, tmp_path / "spoiled")
    (tmp_path / "spoiled" / "attention" / "batch-0000.safetensors").unlink()
    with pytest.raises(hs.InputError, match="made from batch 0, which is gone"):
        add_organized(evidence, hs.open_capture(tmp_path / "spoiled"))
    other = Evidence([hs.HeadId("encoder", 0, 0)])
    assert add_organized(other, captured) is None and other.frame is None
