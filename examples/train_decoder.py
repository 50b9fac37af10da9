"""Train a byte-level decoder on the sources of Python's standard library, and hold it against counting.

    python examples/train_decoder.py [--implementation NAME] [--steps N] [--seqlen N] [--seed N] [--out FILE]

The decoder has LLaMA's form (rotary positions, RMSNorm, SwiGLU), 0.8 million weights, and any implementation
of attention in it. It is judged on whole files that it was never trained on, beside a trigram model that was
fitted to the same training text: the decoder has to be better. The defaults take about two minutes on two
cores.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from attnbench import build_model
from attnbench.contract.errors import UsageError
from attnbench.model.checkpoints import require_target, save_model
from attnbench.model.losses import next_token_loss
from attnbench.model.presets import load_preset
from attnbench.model.text import even_passages, held_out_bytes, random_passages, training_bytes
from attnbench.model.training import train
from attnbench.model.transformer import DecoderOnly
from attnbench.model.trigram import TrigramModel

BYTES_PER_STEP = 2048
PEAK_RATE = 3e-3


def passage_length(step: int, steps: int, longest: int) -> int:
    """A quarter of the longest in the first third of training, then half, then all: what stands close by is
    learned first, on many short passages.
    """
    return longest >> (2 - 3 * step // steps)


def trained_decoder(implementation: str, *, steps: int, seqlen: int, seed: int) -> DecoderOnly:
    """A model of the form of ``stdlib-decoder``: drawn from ``seed``, trained on passages drawn from it."""
    model: DecoderOnly = build_model(load_preset("stdlib-decoder"), implementation, seed=seed)
    text, drawing = training_bytes(), torch.Generator().manual_seed(seed)
    started = time.perf_counter()

    def loss_of(step: int) -> Tensor:
        length = passage_length(step, steps, seqlen)
        tokens = random_passages(text, BYTES_PER_STEP // length, length, drawing)
        return next_token_loss(model(tokens), tokens)

    def report(step: int, loss: float) -> None:
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss:.3f}, {time.perf_counter() - started:.0f} s", flush=True)

    train(model, loss_of, steps=steps, peak_rate=PEAK_RATE, report=report)
    return model


@torch.no_grad()
def held_out_loss(model: DecoderOnly, text: bytes, seqlen: int) -> float:
    """Mean loss in nats per byte over the passages of ``seqlen`` bytes that ``text`` is cut into."""
    count = len(text) // seqlen
    pieces = even_passages(text, count, seqlen).split(max(8192 // seqlen, 1))
    return sum(float(next_token_loss(model(piece), piece)) * len(piece) for piece in pieces) / count


def trained_and_judged(chosen: argparse.Namespace) -> tuple[float, float]:
    """Do what the command line says, and return what ``main`` does."""
    if chosen.out is not None:
        require_target(chosen.out)
    started = time.perf_counter()
    text, held_out = training_bytes(), held_out_bytes()
    trigram = TrigramModel.fit(text).loss(held_out)
    print(f"trigram: {trigram:.4f} nats a byte on {len(held_out)} bytes held out, fitted on {len(text)}")
    model = trained_decoder(chosen.implementation, steps=chosen.steps, seqlen=chosen.seqlen, seed=chosen.seed)
    decoder = held_out_loss(model, held_out, chosen.seqlen)
    seconds = time.perf_counter() - started
    print(f"decoder: {decoder:.4f} nats a byte after {chosen.steps} steps; {seconds:.0f} s in all")
    better = "better" if decoder < trigram else "worse"
    print(f"the decoder is {better} than the trigram model by {abs(trigram - decoder):.4f} nats a byte")
    if chosen.out is not None:
        save_model(model, chosen.out)
    return decoder, trigram


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Train, print, and return the held-out losses of the decoder and of the trigram model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--implementation", default="sdpa", help="of the attention (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=700, help="of training (default: %(default)s)")
    parser.add_argument("--seqlen", type=int, default=256, help="longest passage (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and passages (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="where the trained model is written (safetensors)")
    chosen = parser.parse_args(arguments)
    if chosen.steps < 1 or not 8 <= chosen.seqlen <= BYTES_PER_STEP:
        parser.error(f"--steps from 1, --seqlen from 8 to {BYTES_PER_STEP}")
    try:
        return trained_and_judged(chosen)
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
