"""What is written to a file comes back equal, and a file does not choose what code runs."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from attnbench.contract.errors import UsageError
from attnbench.contract.masks import SlidingWindow
from attnbench.model.builder import build_model
from attnbench.model.checkpoints import load_model, save_model
from attnbench.model.config import TransformerConfig
from attnbench.model.text import stdlib_tokens

LOW_RANK = str(Path(__file__).parents[1] / "toys" / "low_rank.py")
SMALL = {"vocab_size": 256, "dim": 16, "num_layers": 2, "num_heads": 2, "max_seqlen": 32}
FORMS = {
    "decoder": {
        "position": "rope",
        "rope_scaling": {
            "kind": "longrope",
            "factor": 4.0,
            "original_max_seqlen": 16,
            "short_factor": [1.0, 1.5, 2.0, 2.5],
            "long_factor": [2.0, 3.0, 4.0, 5.0],
        },
        "mask": {"name": "sliding-window", "window_size": 7},
        "norm": "rmsnorm",
        "activation": "swiglu",
    },
    "untied": {"tied_embeddings": False, "head_bias": True, "scale": 0.5},
    "encoder": {
        "architecture": "encoder-only",
        "head": "masked-language",
        "num_segments": 2,
        "embedding_norm": True,
        "norm_position": "post",
    },
    "translator": {
        "architecture": "encoder-decoder",
        "num_encoder_layers": 1,
        "cross_implementation": "naive",
        "start_token": 3,
    },
    "two-tables": {"architecture": "encoder-decoder", "source_vocab_size": 100, "position": "sinusoidal"},
}


def small(form="decoder", implementation="naive", **given):
    model = build_model(TransformerConfig(**(SMALL | FORMS[form])), implementation, **given)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.state_dict().items()}


def same(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_saved_comes_back(tmp_path, form):
    path, model = tmp_path / "model.safetensors", small(form)
    save_model(model, path)
    found = load_model(path)
    assert found.config == model.config
    assert same(weights(found), weights(model))
    with safe_open(path, framework="pt") as opened:
        assert len(list(opened.keys())) == len(list(model.parameters()))  # shared ones once


def test_a_model_comes_back_under_another_implementation_mask_and_dtype(tmp_path):
    path, model = tmp_path / "model.safetensors", small(dtype="float64")
    save_model(model, path)
    tokens = stdlib_tokens(2, 20)
    assert load_model(path).embeddings.token.weight.dtype == torch.float64
    windowed = load_model(path, "sliding-window", dtype="float32")
    assert windowed.implementation == "sliding-window"
    torch.testing.assert_close(windowed(tokens), model(tokens).float(), rtol=1e-5, atol=1e-5)
    wider = load_model(path, "sdpa", mask=SlidingWindow(20))
    torch.testing.assert_close(wider(tokens)[:, :7], model(tokens)[:, :7])
    assert (wider(tokens) - model(tokens)).abs().max() > 1e-3


def test_parts_of_an_implementation_stay_with_it(tmp_path):
    path, model = tmp_path / "model.safetensors", small("encoder", LOW_RANK)
    own = [name for name in model.state_dict() if ".core." in name]
    assert len(own) == 4
    save_model(model, path)
    assert same(weights(load_model(path, LOW_RANK)), weights(model))
    plain = load_model(path, "naive")
    assert not [name for name in plain.state_dict() if ".core." in name]
    save_model(plain, path)
    drawn = load_model(path, LOW_RANK, options={"rank": 4})
    assert drawn.get_parameter(own[0]).shape == (4, 32)
    assert torch.equal(drawn.embeddings.token.weight, model.embeddings.token.weight)


def test_files_that_are_none(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.safetensors: no such file"):
        load_model(tmp_path / "nowhere.safetensors")
    (tmp_path / "zip.safetensors").write_bytes(b"PK\x03\x04")
    with pytest.raises(UsageError, match=r"zip\.safetensors: no safetensors file"):
        load_model(tmp_path / "zip.safetensors")
    torch.save({}, tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"model\.pt: a pickle can run code when it is read, so it is not"):
        load_model(tmp_path / "model.pt")


def write(path, config):
    save_file({"x": torch.ones(20_000)}, path, {"attnbench.config": config})
    return path


def test_files_with_another_config(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(UsageError, match="holds weights without a config"):
        load_model(path)
    for config in ("{", "[]", json.dumps({"dim": 16}), json.dumps(SMALL | {"depth": 3})):
        with pytest.raises(UsageError, match=r"model\.safetensors: its config"):
            load_model(write(path, config))
    with pytest.raises(UsageError, match=r"missing: embeddings\.token\.weight, .*extra: x"):
        load_model(write(path, json.dumps(SMALL)))


@pytest.mark.parametrize("name", ["./evil.py", "evil:CODE", "pkg.evil:CODE", "evil.py#x"])
def test_weights_do_not_choose_what_code_runs(tmp_path, name):
    fields = SMALL | {"architecture": "encoder-decoder", "cross_implementation": name}
    path = write(tmp_path / "model.safetensors", json.dumps(fields))
    with pytest.raises(UsageError, match="names code; pass it yourself to have it run"):
        load_model(path)
    with pytest.raises(UsageError, match="extra: x"):
        load_model(path, cross_implementation="naive")


@pytest.mark.parametrize(
    "fields", [{"num_layers": 10**9}, {"num_encoder_layers": 10**9, "architecture": "encoder-decoder"}]
)
def test_a_config_of_more_than_the_file_holds_is_refused_before_it_is_built(tmp_path, fields):
    path = write(tmp_path / "model.safetensors", json.dumps(SMALL | fields))
    with pytest.raises(UsageError, match=r"model\.safetensors: its config needs more than \d+ weights"):
        load_model(path)


def test_errors_of_loading_name_the_file(tmp_path):
    path = tmp_path / "model.safetensors"
    fields = SMALL | {"architecture": "encoder-decoder", "cross_implementation": 3}
    with pytest.raises(
        UsageError, match=r"model\.safetensors: .*cross_implementation: a name is needed, not 3"
    ):
        load_model(write(path, json.dumps(fields)))
    save_model(small(), path)
    with pytest.raises(UsageError, match=r"model\.safetensors: state_dict: misshaped"):
        load_model(path, ffn_dim=63)
    with pytest.raises(UsageError, match=r"model\.safetensors: linear does not support"):
        load_model(path, "linear")
    with pytest.raises(UsageError, match="a folder, and a safetensors file is needed"):
        load_model(tmp_path)
    with pytest.raises(UsageError, match="path: a file is needed, not None"):
        load_model(None)
    with pytest.raises(UsageError, match="implementation: a name or an Implementation is needed"):
        load_model(path, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.pt", r"\.pt stands for pickles"),
        ("missing/model.safetensors", "there is no folder"),
        ("", "a folder; a file is needed"),
    ],
)
def test_places_that_cannot_be_written_are_refused(tmp_path, name, message):
    with pytest.raises(UsageError, match=message):
        save_model(small(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_is_no_model_with_numbers_is_not_saved(tmp_path):
    with pytest.raises(UsageError, match="model: one that build_model made is needed, not Linear"):
        save_model(torch.nn.Linear(2, 2), tmp_path / "x.safetensors")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(UsageError, match="model: its weights are on the meta device"):
        save_model(small().to("meta"), tmp_path / "x.safetensors")
