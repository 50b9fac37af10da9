"""The preset with trained weights: better than counting, one for all forms, refused where it cannot fit."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import SlidingWindow
from attnbench.model.builder import build_block, build_model
from attnbench.model.checkpoints import load_model
from attnbench.model.losses import next_token_loss
from attnbench.model.presets import load_preset, preset_names, preset_weights
from attnbench.model.text import even_passages, sample_bytes, training_bytes
from attnbench.model.trigram import TrigramModel
from attnbench.plan.case import Case

PRESET = "stdlib-decoder"


def test_it_predicts_clearly_better_than_a_trigram_model():
    """On text that neither has seen: the trigram model counts all that there is to train on here."""
    text = sample_bytes()[: 2**14]
    with torch.no_grad():
        passages = even_passages(text, 16, 1024)
        loss = next_token_loss(build_model(PRESET, "sdpa")(passages), passages)
    assert float(loss) < TrigramModel.fit(training_bytes()).loss(text) - 0.3


def test_the_sample_was_not_trained_on():
    trained = training_bytes()
    passages = even_passages(sample_bytes(), len(sample_bytes()) // 512, 512).tolist()
    assert not [passage for passage in passages if bytes(passage) in trained]


def test_weights_are_those_of_the_file_in_every_form():
    trained = load_model(preset_weights(PRESET), dtype="float32").state_dict()
    mask = SlidingWindow(8)
    for model in (
        build_model(PRESET, "sdpa", seed=3),
        build_model(PRESET, "linear", mask="causal", max_seqlen=4096),
        build_model(PRESET, "sliding-window", mask=mask),
    ):
        held = model.state_dict()
        assert held.keys() == trained.keys()
        assert all(torch.equal(held[name], tensor) for name, tensor in trained.items())
    assert build_model(PRESET, mask=mask).config.mask == mask
    wide = build_model(PRESET, dtype="float64").state_dict()
    assert all(torch.equal(wide[name], tensor.double()) for name, tensor in trained.items())


def test_a_block_is_its_first_layer():
    block, model = build_block(PRESET, "sdpa").state_dict(), build_model(PRESET, "sdpa").state_dict()
    assert len(block) == 9
    for name, tensor in block.items():
        assert torch.equal(tensor, model[f"decoder.layers.0.{name}"])


def test_a_config_has_its_weights_drawn():
    drawn = build_model(load_preset(PRESET), seed=0).state_dict()
    trained = build_model(PRESET, seed=0).state_dict()
    assert not any(torch.equal(drawn[name], trained[name]) for name in trained if "norm" not in name)


def test_under_fake_tensors_nothing_is_read():
    with FakeTensorMode():
        model = build_model(PRESET, "sdpa")
        assert model(torch.zeros(1, 8, dtype=torch.int64)).shape == (1, 8, 256)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_layers": 2}, r"num_layers = 2 \(trained with 4\)"),
        ({"num_heads": 8, "head_dim": 16}, r"num_heads = 8 \(trained with 4\), .*head_dim = 16"),
        ({"activation": "gelu"}, r"activation = 'gelu' \(trained with 'swiglu'\)"),
        ({"dim": 64, "num_layers": 1}, r"dim = 64 \(trained with 128\), num_layers = 1"),
    ],
)
@pytest.mark.parametrize("build", [build_model, build_block])
def test_overrides_that_do_not_fit_are_refused(build, overrides, message):
    with pytest.raises(
        UsageError, match=f"preset 'stdlib-decoder' has trained weights, which do not fit {message}"
    ):
        build(PRESET, **overrides)


def test_an_architecture_that_does_not_fit_is_refused_in_planning():
    keys = {"implementation": "sdpa", "level": "block", "preset": PRESET, "seqlen_q": 8}
    assert Case.from_dict({**keys, "architecture": "decoder-only"}).num_heads == 4
    with pytest.raises(UsageError, match=r"do not fit architecture = 'encoder-only' \(trained with"):
        Case.from_dict({**keys, "architecture": "encoder-only"})


def test_one_preset_is_trained():
    assert [name for name in preset_names() if preset_weights(name) is not None] == [PRESET]
    assert preset_weights(PRESET).is_file()
