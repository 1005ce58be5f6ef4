"""A result finds its sentences and pictures in the files of its folder."""

import pytest

import headscape as hs
from headscape.studies.laws import figures, findings
from headscape.studies.work.result import StudyResult


@pytest.fixture(scope="module")
def result():
    return hs.laws(n=10, radii=(1.0,), draws=40)


def test_findings_and_figures_are_those_of_the_folder(result):
    assert isinstance(result, StudyResult)
    assert result.findings() == findings.findings(result)
    assert [spec.id for spec in result.figures()] == [spec.id for spec in figures.figures(result)]


def test_a_result_outside_of_a_folder_has_to_bring_its_own(result):
    class Alone(StudyResult):
        study = "alone"

        def to_frame(self):
            return result.to_frame()

    with pytest.raises(ImportError):
        Alone().findings()
