"""The number of torch's threads, set for a block."""

import pytest
import torch

from headscape.attention.threads import torch_threads


def test_the_former_number_comes_back_even_after_an_error():
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        with torch_threads(None):
            assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), torch_threads(before + 2):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
