"""A trained model, trained further with and without a hidden state.

Also tests hopfield.pretrained.
"""

import json

import pytest
import torch
import transformers as T
from safetensors import safe_open
from safetensors.torch import load_file

from headscape.errors import InputError
from headscape.hopfield.networks import arm
from headscape.hopfield.pretrained import Pretrained, config_of
from headscape.hopfield.trained import find_trained
from headscape.runs import Run
from headscape.studies.collapse.trained import collapse_trained
from headscape.studies.train import train
from headscape.studies.train.loop import _Run
from zoo import SMALL


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "llama"
    config = T.LlamaConfig(**SMALL | {"vocab_size": 256}, num_key_value_heads=2, tie_word_embeddings=True)
    T.LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_it_starts_from_the_model_and_raises_the_hidden_state(folder):
    config = config_of(str(folder), 16)
    assert (config.layers, config.heads, config.dim, config.outputs) == (2, 4, 32, 256)
    ids = torch.randint(0, 256, (2, 16))
    own = T.LlamaForCausalLM.from_pretrained(folder).eval()(ids).logits
    network = Pretrained(config, arm("hidden", init="first")).eval()
    changed = network(ids)
    assert len(changed.hidden) == 3 and (changed.logits - own).abs().max() > 1e-4
    network.share = 0.0
    torch.testing.assert_close(network(ids).logits, own, atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match="in the arms standard, hidden and longer only"):
        Pretrained(config, arm("both"))


def test_arms_that_a_model_cannot_take_are_refused_before_anything_is_written(folder, text, tmp_path):
    with pytest.raises(InputError, match="in the arms standard, hidden and longer only"):
        train(str(folder), tmp_path / "run", text=text, arms=["standard", "both"])
    assert not (tmp_path / "run").exists()


def test_the_comparison(folder, text, tmp_path):
    options = {"sizes": {"tokens": 16}, "arms": ["standard", "hidden"], "seeds": 2, "steps": 6, "evaluations": 2}
    result = train(str(folder), tmp_path / "run", text=text, rates=[1e-2], **options)
    assert result.settings["ramp"] == 3 and list(result.baselines)[-1] == "trigram"
    assert result.trials["removed"].notna().all() and result.layers["layer"].max() == 2
    units = tmp_path / "run" / "train" / "units"
    log = json.loads(next(units.glob("hidden*seed1-*.json")).read_text())
    assert log["curve"][-1]["loss"] < log["curve"][0]["loss"]
    found = find_trained(tmp_path / "run", Run.open(tmp_path / "run").meta["config"], "hidden", 1, None)
    network, stored = found.network(), load_file(found.weights)
    assert torch.equal(network.network.lm_head.weight, stored["network.model.embed_tokens.weight"])
    with pytest.raises(InputError, match="trained a model further, which this study does not take"):
        collapse_trained(tmp_path / "run", arm="hidden")
    assert not list(units.glob("*-step*"))  # a model is large: its best weights are kept, not those of every evaluation


def test_weights_are_judged_once_the_hidden_state_is_raised(folder, text, tmp_path, monkeypatch):
    """Those of an earlier evaluation were trained with a smaller a' than the one they would be judged with."""
    monkeypatch.setattr(
        _Run, "measured", lambda self, part, n: {"loss": 1.0 + self.step, "accuracy": 0.0}
    )  # ever worse
    options = {"sizes": {"tokens": 16}, "seeds": 1, "steps": 6, "evaluations": 6, "patience": 2}
    train(str(folder), tmp_path / "run", text=text, arms=["standard", "hidden"], rates=[1e-3], **options)
    kept, steps = {}, {}
    for path in (tmp_path / "run" / "train" / "units").glob("*-seed0-*.safetensors"):
        arm_ = path.name.partition("-")[0]
        with safe_open(path, framework="pt") as file:
            kept[arm_] = json.loads(file.metadata()["headscape"])["step"]
        steps[arm_] = json.loads(path.with_suffix(".json").read_text())["steps"]
    assert kept == {"standard": 1, "hidden": 3} and steps == {"standard": 3, "hidden": 5}  # raised during 3 of 6 steps
