"""The fast reader of GGUF files against gguf's own."""

import struct

import gguf
import numpy as np
import pytest

import headscape as hs
from headscape.attention.gguf_reader import fast_reader, open_gguf

TOKENS = ["a", "", "\u2581\u2581", "long " * 100, "\U0001f600"]


@pytest.fixture(params=[gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])
def file(request, tmp_path):
    path = tmp_path / "tokens.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=request.param)
    writer.add_string("general.name", "tiny")
    writer.add_array("tokenizer.ggml.tokens", TOKENS)
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 3.25, 0.0, 1e-9])
    writer.add_array("tokenizer.ggml.token_type", [1, 1, 6, -3, 1])
    writer.add_array("flags", [True, False])
    writer.add_array("one", ["alone"])
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_tensor("weights", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_fields_and_tensors_are_those_of_the_slow_reader(file):
    slow, fast = gguf.GGUFReader(file), open_gguf(file)
    assert list(slow.fields) == list(fast.fields)
    for name, field in slow.fields.items():
        mine = fast.fields[name]
        assert (mine.offset, mine.types, mine.data) == (field.offset, field.types, field.data), name
        assert [bytes(part) for part in mine.parts] == [bytes(part) for part in field.parts], name
        assert mine.contents() == field.contents(), name
    assert fast.fields["tokenizer.ggml.tokens"].contents() == TOKENS
    assert [t.name for t in fast.tensors] == ["weights"] and np.array_equal(fast.tensors[0].data, slow.tensors[0].data)


def test_a_file_that_ends_early_is_one_line(file):
    whole = file.read_bytes()
    for kept in (3, 20, whole.index(b"long") + 7, whole.index(b"token_type") + 40):
        file.write_bytes(whole[:kept])
        with pytest.raises(hs.InputError, match=r"^tokens\.gguf cannot be read as GGUF: .+"):
            open_gguf(file)


def test_others_use_it_only_while_asked(file):
    theirs = gguf.GGUFReader
    with fast_reader():
        assert issubclass(gguf.GGUFReader, theirs) and gguf.GGUFReader is not theirs
    assert gguf.GGUFReader is theirs


HEADERS = {
    "the same key for ever": struct.pack("<QQ", 0, 2**62) + bytes(100),
    "arrays in arrays": struct.pack("<QQQcI", 0, 1, 1, b"a", 9) + struct.pack("<IQ", 9, 1) * 100_000,
    "counts beyond the file": struct.pack("<QQ", 2**63, 2**63),
    "a string beyond the file": struct.pack("<QQQ", 0, 1, 2**60),
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_says_absurd_things_is_one_line(header, tmp_path):
    file = tmp_path / "odd.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<I", 3) + HEADERS[header])
    with pytest.raises(hs.InputError, match=r"^odd\.gguf cannot be read as GGUF: .+"):
        open_gguf(file)
