"""Findings on the page: the sentence, then one of three verdicts with its rule."""

import re

from fakes import FAILS, FakeResult, frame_of, head_figures, result_of
from headscape.report.findings import findings, missing, rule
from headscape.report.gather import gather
from headscape.results import Finding


def test_each_verdict_has_a_sign_and_words_and_its_rule_after_the_sentence():
    items = re.findall(r"<li.*?</li>", findings(gather([result_of(4, 3)])))
    plain = [re.sub("<.*?>", "", item) for item in items]
    assert plain == [
        "The ten least active heads recur in 9 of 10 batches. Figure: Map of the heads"
        "✓ Holds: 0.9 [0.8, 1] (n = 8) lies above 0.1 (chance).",
        "Shuffling does not change &lt;b&gt;this&lt;/b&gt;. Figure: Layer by head"
        "✗ Does not hold: 0.2 [0.1, 0.3] (n = 8) lies below 0.5 (rows &lt;b&gt;shuffled&lt;/b&gt;).",
        "Whether training made this cannot be told. Figure: Layer by head? Cannot tell: one batch; capture at least 3.",
        "Nothing was claimed here.",
    ]
    assert [re.search('class="(.*?)"', item)[1] for item in items] == ["holds", "fails", "unsure", "plain"]


def test_signs_are_hidden_from_screen_readers_and_words_are_not():
    shown = rule(Finding("x", None, FAILS))
    assert '<span aria-hidden="true">✗</span> Does not hold' in shown
    assert rule(Finding("x")) == ""


def test_a_finding_whose_figure_is_not_there_has_no_link():
    result = FakeResult(frame_of(1, 2), head_figures(1, 2), [Finding("Seen.", "map"), Finding("Unseen.", "nowhere")])
    first, second = re.findall(r"<li.*?</li>", findings(gather([result])))
    assert 'href="#fig-fake-map"' in first and "href" not in second


def test_what_is_missing_is_said_with_the_reason():
    scene = gather([("softmax", ValueError("the file <b>decay</b> is damaged")), ("prune", "not run.")])
    assert re.sub("<.*?>", "", missing(scene, ["maps are gone"])) == (
        "Section softmax is missing: ValueError: the file &lt;b&gt;decay&lt;/b&gt; is damaged."
        "Section prune is missing: not run.Maps are gone."
    )
    assert missing(gather([]), []) == ""
