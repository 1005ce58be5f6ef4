"""Two prompts side by side: a head that moves its attention is found, one that does not is not."""

import numpy as np
import pytest

import headscape as hs
from headscape.studies.change import compare_prompts
from headscape.studies.change.study import aligned, change_of

A, B = ["the", " cat", " sat", " down"], ["the", " old", " dog", " sat", " down"]


def maps(n, *keys):
    """One head per rule: query i attends wholly to key(i)."""
    values = np.zeros((len(keys), n, n), dtype=np.float32)
    for h, key in enumerate(keys):
        for i in range(n):
            values[h, i, min(i, max(0, key(i)))] = 1
    return values


def captured(first, second, tokens=(A, B)):
    return hs.from_attentions([[first], [second]], tokens=list(tokens))


def previous(i):
    return i - 1


def sink(i):
    return 0


def test_heads_that_follow_a_rule_do_not_change_where_tokens_are_the_same():
    both = captured(maps(4, sink, previous), maps(4, previous, previous), (A, ["the", " dog", " sat", " down"]))
    result = compare_prompts(both)
    # from the first token to the previous one: moved at the queries 2 and 3, not at 1; the query 0 has no choice
    assert result.ranked()[["head", "change"]].to_numpy().tolist() == [[0, pytest.approx(2 / 3)], [1, 0]]
    assert result.top == ["heads.0.0", "heads.0.1"]
    assert "0.0 (0.67), 0.1 (0.00)" in result.findings()[0].text


def test_tokens_of_unequal_prompts_are_aligned_as_in_a_difference():
    assert [a.tolist() for a in aligned(A, B)] == [[0, 2, 3], [0, 3, 4]]  # one cat for an old dog: not aligned
    X, Y = (cap.tensor(i) for cap in [captured(maps(4, previous), maps(5, previous))] for i in (0, 1))
    # sat: from " cat" to " dog", both outside the alignment; down: from " sat" to " sat"
    assert change_of(X, Y).tolist() == [0]
    X, Y = (cap.tensor(i) for cap in [captured(maps(4, sink), maps(5, previous))] for i in (0, 1))
    assert change_of(X, Y).tolist() == [1]


def test_prompts_without_a_common_token_cannot_be_told():
    result = compare_prompts(captured(maps(4, sink), maps(2, sink), (A, ["x", "y"])))
    assert result.findings()[0].verdict == "cannot tell"
    assert [figure.id for figure in result.figures()] == ["change-table"]


def test_the_result_is_kept_and_reloads(tmp_path):
    hs.from_attentions([[maps(4, sink)], [maps(5, previous)]], tokens=[A, B], out=tmp_path / "run")
    made = compare_prompts(tmp_path / "run")
    read = hs.open_result(tmp_path / "run", "change")
    assert read.ranked().equals(made.ranked()) and read.texts == made.texts
    np.testing.assert_array_equal(read.maps[0][1].values, made.maps[0][1].values)
    for first, second, said in ((0, 0, "cannot be compared with itself"), (0, 5, "there is no batch 5")):
        with pytest.raises(hs.InputError, match=said):
            compare_prompts(tmp_path / "run", first, second)
