"""Small models of Hugging Face with random weights, in memory; float64 that stays float64 in them."""

import importlib
import types

import pytest
import torch

FAMILIES = ("gpt2", "llama", "qwen2", "bert", "marian")
SIZES = {"vocab_size": 61, "attn_implementation": "eager"}
DECODER = SIZES | {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = SIZES | {
    "n_positions": 32,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "bos_token_id": None,
    "eos_token_id": None,
}
MARIAN = SIZES | {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 60,
    "pad_token_id": 60,
    "eos_token_id": None,
    "forced_eos_token_id": None,
}


@pytest.fixture(scope="session")
def hf():
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@pytest.fixture(params=["float32", "float64"])
def dtype(request, hf, monkeypatch):
    """The dtype of models and of torch's defaults.

    Hugging Face rounds norms, softmax and rotary angles to float32 in a model of any dtype. Under float64 the
    names that say so mean float64 for as long as the test runs, so that there is something exact to compare
    with.
    """
    chosen = getattr(torch, request.param)
    if chosen == torch.float64:
        wide = types.ModuleType("torch")
        wide.__dict__.update(torch.__dict__, float=chosen, float32=chosen, FloatTensor=torch.DoubleTensor)
        rope = importlib.import_module("transformers.modeling_rope_utils")
        models = [importlib.import_module(f"transformers.models.{name}.modeling_{name}") for name in FAMILIES]
        for module in (rope, *models):
            monkeypatch.setattr(module, "torch", wide)
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    before = torch.get_default_dtype()
    torch.set_default_dtype(chosen)
    yield chosen
    torch.set_default_dtype(before)


@pytest.fixture
def zoo(hf):
    """Makes a model of a class and a config, with every weight drawn, biases and norms too."""

    def make(class_name, **fields):
        base = class_name.removesuffix("Model")
        for suffix in ("LMHead", "ForCausalLM", "ForMaskedLM", "ForPreTraining", "MT"):
            base = base.removesuffix(suffix)
        defaults = {"GPT2": GPT2, "Marian": MARIAN}.get(base, DECODER)
        generator = torch.Generator().manual_seed(3)
        model = getattr(hf, class_name)(getattr(hf, f"{base}Config")(**(defaults | fields))).eval()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:  # Marian's sinusoids stay what they are
                norm = parameter.ndim == 1 and name.endswith("weight")
                mean, std = (1.0, 0.3) if norm else (0.0, 0.5)
                torch.nn.init.normal_(parameter, mean, std, generator=generator)
        if base == "Marian" and class_name != "MarianModel":
            model.final_logits_bias.normal_(std=0.3, generator=generator)
        return model

    return make


@pytest.fixture
def tokens():
    return torch.randint(0, 60, (3, 12), generator=torch.Generator().manual_seed(5))


@pytest.fixture
def valid():
    """A padding mask of rows of 12, 7 and 3 tokens."""
    return torch.arange(12) < torch.tensor([12, 7, 3])[:, None]


@pytest.fixture
def agree():
    """Asserts equality relative to the largest element: 1e-10 in float64, 1e-5 in float32."""

    def check(actual, expected, tolerances=(1e-10, 1e-5)):
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        scale = expected.abs().max()
        assert scale > 0
        tolerance = tolerances[expected.dtype == torch.float32]
        assert (actual - expected).abs().max() <= tolerance * scale

    return check
