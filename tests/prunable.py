"""A tiny Llama with heads that are known to be removable, and texts to rank and judge it on."""

import torch

import headscape as hs
from tiny import Letters
from zoo import make

RANK = ["the quick brown fox jumps over the lazy dog and then it does all of that once more for good measure"]
JUDGE = ["she sells sea shells by the sea shore and the shells she sells are surely sea shells of the shore " * 2]
QUICK = {
    "criteria": ("novelty", "gradient", "output_norm", "l1_all", "l1_top"),
    "windows": 4,
    "evaluations": 6,
    "threads": 1,
}
SILENT = {hs.HeadId("decoder", 0, 2), hs.HeadId("decoder", 1, 0)}


def network():
    """A Llama whose heads (0, 2) and (1, 0) output nothing, and whose head (1, 3) attends as (1, 2) does."""
    module = make("llama")
    with torch.no_grad():
        module.model.layers[0].self_attn.o_proj.weight[:, 16:24] = 0
        module.model.layers[1].self_attn.o_proj.weight[:, 0:8] = 0
        module.model.layers[1].self_attn.q_proj.weight[24:32] = module.model.layers[1].self_attn.q_proj.weight[16:24]
    return module


def reader(folder):
    """The same network in a folder, with a tokenizer that reads letters: any process can load it."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    network().save_pretrained(folder)
    letters = {chr(97 + i): 10 + i for i in range(26)} | {" ": 36, "[UNK]": 37}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    return hs.load_model(folder, device="cpu")


def wrapped():
    return hs.wrap_module(network(), tokenizer=Letters())


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
