"""State dicts are loaded whole or not at all."""

from pathlib import Path

import pytest
import torch

from attnbench.contract.errors import UsageError
from attnbench.model.builder import build_model
from attnbench.model.config import TransformerConfig
from attnbench.model.state_dicts import load_weights

LOW_RANK = str(Path(__file__).parents[1] / "toys" / "low_rank.py")
SMALL = {"vocab_size": 256, "dim": 16, "num_layers": 2, "num_heads": 2, "max_seqlen": 32}


def small(implementation="naive", seed=0, dtype="float32", **form):
    return build_model(TransformerConfig(**(SMALL | form)), implementation, seed=seed, dtype=dtype)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.state_dict().items()}


def same(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_parts_of_an_implementation_are_given_all_or_none():
    model = small(LOW_RANK, architecture="encoder-only")
    given = weights(model)
    del given["encoder.layers.0.mixer.core.project_k"]
    with pytest.raises(UsageError, match=r"missing: encoder\.layers\.0\.mixer\.core\.project_k; nothing"):
        load_weights(model, given)


def test_every_problem_is_listed_and_nothing_is_loaded():
    model = small()
    before, given = weights(model), weights(small(seed=1))
    del given["decoder.norm.weight"], given["decoder.layers.1.ffn.up.weight"]
    given |= {"decoder.layers.2.ffn.up.weight": torch.ones(2, 2), "head": torch.ones(1)}
    given["decoder.layers.0.ffn.up.weight"] = torch.ones(3, 16)
    given["decoder.layers.0.ffn.down.weight"] = torch.ones(16, 64, dtype=torch.int8)
    given["decoder.layers.0.mixer.q_proj.weight"] = [1.0]
    with pytest.raises(UsageError) as caught:
        load_weights(model, given)
    assert str(caught.value) == (
        "state_dict: missing: decoder.layers.1.ffn.up.weight, decoder.norm.weight; "
        "extra: decoder.layers.2.ffn.up.weight, head; "
        "misshaped: decoder.layers.0.mixer.q_proj.weight is list, not floating-point, "
        "decoder.layers.0.ffn.up.weight is [3, 16], not [64, 16], "
        "decoder.layers.0.ffn.down.weight is int8, not floating-point; nothing was loaded"
    )
    assert same(weights(model), before)


def test_a_shared_table_is_given_by_either_name_and_must_agree_under_both():
    source, target = "source_embeddings.token.weight", "target_embeddings.token.weight"
    model, given = (
        small(architecture="encoder-decoder"),
        weights(small(architecture="encoder-decoder", seed=1)),
    )
    given[source] = given[target] = torch.full_like(given[source], 0.5)
    for name in (source, target):
        load_weights(model, {key: tensor for key, tensor in given.items() if key != name})
        assert model.source_embeddings.token.weight.eq(0.5).all()
    before = weights(model)
    with pytest.raises(UsageError, match=f"one parameter here but not there: {source} and {target}; nothing"):
        load_weights(model, given | {target: torch.zeros_like(given[target])})
    with pytest.raises(UsageError, match=rf"misshaped: {target} is list, not floating-point; nothing"):
        load_weights(model, given | {target: [1.0]})
    del given[source], given[target]
    with pytest.raises(UsageError, match=f"missing: {source}; nothing was loaded"):
        load_weights(model, given)
    assert same(weights(model), before)


def test_values_are_cast_and_the_parameters_stay_the_same_objects():
    model = small(dtype="float64")
    parameters = list(model.parameters())
    given = {name: tensor.to(torch.float16) for name, tensor in weights(small(seed=1)).items()}
    load_weights(model, given)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(model.embeddings.token.weight, given["embeddings.token.weight"].double())
    assert all(parameter.requires_grad for parameter in parameters)
