"""Tiny causal networks with a fast tokenizer of bytes, for studies in which a model writes."""

import torch

import headscape as hs


def byte_tokenizer():
    """One token per byte, a space joined to the letter after it: fast, with offsets."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {letter: i + 3 for i, letter in enumerate(sorted(letters))} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    merges = [("Ġ", letter) for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    vocabulary |= {a + b: len(vocabulary) + i for i, (a, b) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>")


def tiny(kind="llama", positions=1024, seed=0):
    import transformers as T

    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": positions}
    shape |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "qwen3":
        network = T.Qwen3ForCausalLM(T.Qwen3Config(**shape, head_dim=16))
    else:
        network = T.LlamaForCausalLM(T.LlamaConfig(**shape))
    network.eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6.0)
    return hs.wrap_module(network, tokenizer=byte_tokenizer(), name=f"tiny-{kind}")


def saved(folder):
    """The same, saved to a folder and loaded from it."""
    model = tiny()
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return hs.load_model(folder, device="cpu")
