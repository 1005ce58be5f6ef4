"""headscape claims: every claim of the list, once, with the verdict of the study that tests it.

Also tests studies.claims.needs, studies.claims.together.
"""

import json
from dataclasses import replace
from importlib import import_module
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import headscape as hs
from commands import headscape, one_line_error
from headscape.errors import InputError
from headscape.intervals import Interval
from headscape.papers import claim
from headscape.papers import claims as all_claims
from headscape.results import Finding
from headscape.studies import load_results
from headscape.studies.claims.needs import NEEDS, not_applicable
from headscape.studies.claims.result import VERDICTS
from headscape.studies.claims.study import OPTIONS, SIZES, _row, _tested, chosen, sampled
from headscape.studies.work.how import Work
from headscape.verdicts import cannot_tell, judge
from planted_runs import attention_of, make_run
from zoo import make

CAUSAL = {"source": "gpt", "task": "causal-lm", "causal": True}
IMAGES = {"source": "vit", "task": "image-classifier", "causal": False}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Attention without a model."""
    place = tmp_path_factory.mktemp("claims")
    return make_run(place / "run", attention_of(1, 0, n_batch=4), organized=False)


@pytest.fixture(scope="module")
def result(imported):
    return hs.claims(imported, quick=True, only=["fasina2025", "train", "spectra"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tiny causal model and its weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("claims-model")
    words = {word: i for i, word in enumerate(["[UNK]", "the", "cat", "sat", "on", "mat", "and", "dog", "ran", "far"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    make("gpt2").save_pretrained(place / "model")
    PreTrainedTokenizerFast(tokenizer_object=plain).save_pretrained(place / "model")
    (place / "text.txt").write_text("the cat sat on the mat and the dog ran far " * 80)
    options = {"quick": True, "inputs": place / "text.txt", "out": place / "run", "only": ["spectra"]}
    return place, options, hs.claims(place / "model", **options)


def test_every_claim_is_chosen_once_and_needs_something_that_is_known():
    assert [one.id for one in chosen()] == list(all_claims())
    assert {one.needs for one in all_claims().values()} <= {*NEEDS, ""}
    assert {one.study for one in chosen(["softmax", "organize.learnt"])} == {"softmax", "organize"}
    assert all(one.source.authors.startswith("Wertich") for one in chosen(["wertich2024"]))
    with pytest.raises(InputError, match="'wertich2023'.*fasina2025"):
        chosen(["wertich2023"])


def test_a_row_per_claim_with_the_verdict_and_the_number_of_its_study(imported, result):
    rows = result.claims.set_index("claim")
    assert list(rows.index) == [one.id for one in chosen(["fasina2025", "train", "spectra"])]
    assert rows.index.is_unique and set(rows["verdict"]) <= set(VERDICTS)
    own = hs.open_result(imported, "organize")
    row = rows.loc["organize.structure"]
    assert (row["value"], row["n"]) == (own.effect.value, 4) and row["low"] < row["value"] < row["high"]
    assert row["why"] == judge(own.effect, above=1.0, control="every row shuffled and organized again").why
    assert row["figure"] in {figure.id for figure in own.figures()}


def test_a_run_is_not_beside_itself(imported):
    with pytest.raises(InputError, match="beside itself"):
        hs.claims(imported, quick=True, only=["compare"], beside=[imported])


def test_the_headline_counts_the_claims_of_all_papers(result):
    counts = result.claims["verdict"].value_counts()
    assert result.headline().startswith(f"of {len(result.claims)} claims ")
    assert f"{counts['not applicable']} are not about this model" in result.headline()
    one = replace(result, claims=result.claims[result.claims["claim"] == "train.both"])
    assert one.headline() == "the one claim is not about this model" and one.headline() in one.findings()[0].text


def test_what_the_run_does_not_have_is_not_applicable_or_says_what_to_do(result):
    rows = result.claims.set_index("claim")
    assert (
        rows.loc["organize.learnt", "verdict"] == "not applicable" and "no model" in rows.loc["organize.learnt", "why"]
    )
    assert (rows.loc[rows["study"] == "spectra", "verdict"] == "not applicable").all()
    assert (rows.loc[rows["study"] == "train", "verdict"] == "not applicable").all()
    assert rows.loc["compare.apart", "verdict"] == "not applicable"
    missing = rows.loc["softmax.pointwise"]  # no scores were kept
    assert missing["verdict"] == "cannot tell" and "--keep probs,scores" in missing["why"] and pd.isna(missing["value"])


@pytest.mark.parametrize(
    ("id", "facts", "applies"),
    [
        ("gaussian.next", CAUSAL, True),
        ("gaussian.next", IMAGES, False),
        ("gaussian.sphere", IMAGES, False),
        ("gaussian.rank", {}, True),
        ("spectra.sparser", {}, False),
        ("collapse.bounds", CAUSAL, False),
        ("collapse.bounds", IMAGES, True),
        ("collapse.removed", CAUSAL, False),
        ("train.both", CAUSAL | {"training": 1}, True),
        ("compare.apart", CAUSAL | {"networks": 1}, True),
        ("table1.work", {}, True),
    ],
)
def test_needs(id, facts, applies):
    assert (not_applicable(claim(id), facts) is None) == applies


def test_of_several_findings_the_one_that_decides_is_shown():
    up, down = Interval(2.0, 1.5, 2.5, 8), Interval(-2.0, -2.5, -1.5, 8)
    found = [Finding(f"{x.value}", "energy", judge(x, above=0.0)) for x in (up, down)]
    row = _row(claim("organize.stability"), None, [*found, Finding("unsure", None, cannot_tell("few"))], "")
    assert (row["verdict"], row["value"], row["finding"], row["figure"]) == ("does not hold", -2.0, "-2.0", "energy")
    assert _row(claim("organize.stability"), None, found[:1], "")["verdict"] == "holds"
    far = judge(hs.mean_interval([0.2, 1.2]), above=0.0)  # ends at a million
    row = _row(claim("organize.stability"), None, [Finding("few", None, far)], "")
    assert (row["value"], row["n"], row["verdict"]) == (0.7, 2, "cannot tell") and np.isnan(
        [row["low"], row["high"]]
    ).all()


def test_studies_share_one_run_and_a_second_call_reuses_all_of_it(whole):
    place, options, first = whole
    assert set(first.claims["study"]) == {"spectra"}
    rows = first.claims.set_index("claim")
    own = {f.claim: f.verdict for f in hs.open_result(place / "run", "spectra").findings() if f.claim}
    assert {id: rows.loc[id, "verdict"] for id in own} == own
    assert set(rows["n"]) == {8, 2}  # heads, and layers
    units = {path: path.stat().st_mtime_ns for path in (place / "run").glob("*/units/*")}
    again = hs.claims(place / "run", quick=True, only=options["only"])
    assert units and units == {path: path.stat().st_mtime_ns for path in (place / "run").glob("*/units/*")}
    pd.testing.assert_frame_equal(first.claims, again.claims)
    with pytest.raises(InputError, match="is a run"):
        hs.claims(place / "run", out=place / "elsewhere")


def test_the_command_writes_page_and_tables_and_links_figures(imported, result):
    done = headscape(
        "claims", imported, "--quick", "--only", "organize.structure", "--only", "train.both", "--json", "-q"
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["claims"]
    assert [row["claim"] for row in rows] == ["organize.structure", "train.both"]
    kept = {row["claim"]: row for row in json.loads((imported / "claims.json").read_text())["claims"]}
    assert [kept[row["claim"]] for row in rows] == rows
    assert list(pd.read_csv(imported / "claims.csv")["claim"]) == list(kept) == list(result.claims["claim"])
    page, report = ((imported / name).read_text() for name in ("claims.html", "report.html"))
    anchors = [part.split('"')[0] for part in page.split('href="report.html#')[1:]]
    assert len(anchors) == (result.claims["figure"] != "").sum() > 1 and "Not applicable" in page
    assert all(f'id="{anchor}"' in report for anchor in anchors) and page.count("<tr class=") == len(kept)
    assert page.split("prefers-color-scheme: dark")[1].count("--ink: #e7e6e1") == 1  # the page follows the system
    assert "'nothing'" in one_line_error(headscape("claims", imported, "--only", "nothing"), 2)
    assert "no bundled model" in one_line_error(headscape("claims", "no-such-model"), 2)


def test_a_few_claims_tested_again_leave_the_others_where_they_were_tested_alike(imported, result):
    """The page of the run, its files and `open_result` agree on what is known."""
    run = hs.Run.open(imported)
    assert list(hs.claims(imported, quick=True, only=["train.both"]).claims["claim"]) == ["train.both"]
    (shown,) = (one for one in load_results(run) if getattr(one, "study", "") == "claims")
    for known in (shown, hs.open_result(run, "claims")):
        pd.testing.assert_frame_equal(known.claims, result.claims)
    for options in ({"quick": False}, {"quick": True, "random_state": 1}):
        hs.claims(imported, only=["train.both"], **options)
        assert list(hs.open_result(run, "claims").claims["claim"]) == ["train.both"]


@pytest.mark.parametrize(("n_layer", "kept"), [(30, [0, 6, 12, 17, 23, 29]), (6, [0, 1, 2, 3, 4, 5]), (2, [0, 1])])
def test_a_quick_look_takes_two_heads_of_a_few_layers_over_all_depths(n_layer, kept):
    heads = [hs.HeadId("decoder", layer, head) for layer in range(n_layer) for head in range(4)]
    assert sampled(heads) == [str(hs.HeadId("decoder", layer, head)) for layer in kept for head in (0, 1)]


def test_a_quick_look_gives_every_study_that_needs_eight_inputs_eight():
    """Three inputs decided on `collapse`, and nobody had asked for three."""
    for study in ("softmax", "gaussian", "collapse"):
        run = getattr(import_module(f"headscape.studies.{study}"), study)
        own = OPTIONS[True].get(study, {}).get("batches", signature(run).parameters["batches"].default)
        assert min(own, SIZES[True]["batches"]) >= 8


def test_a_claim_that_a_study_leaves_out_says_why():
    silent = SimpleNamespace(findings=list, figures=list, left_out=["the rest"], apart={"gaussian.scores": "a bias"})
    test = SimpleNamespace(about=CAUSAL, result=lambda study: silent, compared=lambda study: [])
    wanted = [claim("gaussian.temperature"), claim("gaussian.rank"), claim("gaussian.scores")]
    temperature, rank, scores = _tested(test, "gaussian", wanted, Work())
    assert "leave out --quick" in temperature["why"] and temperature["verdict"] == "cannot tell"
    assert rank["why"] == "the study says nothing about it on these inputs (left out: the rest)"
    assert (scores["verdict"], scores["why"]) == ("not applicable", "a bias")


def test_a_row_links_only_to_what_the_page_draws():
    seen = [SimpleNamespace(id="rank")]
    judged = cannot_tell("few")
    said = [Finding("a", "rank", judged, "gaussian.rank"), Finding("b", "gone", judged, "gaussian.scores")]
    study = SimpleNamespace(findings=lambda: said, figures=lambda: seen)
    test = SimpleNamespace(about=CAUSAL, result=lambda study_: study, compared=lambda study_: [])
    rank, scores = _tested(test, "gaussian", [claim("gaussian.rank"), claim("gaussian.scores")], Work())
    assert (rank["figure"], scores["figure"]) == ("rank", "")
