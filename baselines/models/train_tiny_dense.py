"""Train `tiny-dense`: a 0.85 M parameter Llama on bytes, so that tests have peaked, real logits.

A random model gives nearly flat logits, which hide the faults that matter: an argmax that flips, a
softmax that saturates. This one reads Python, learned from the sources of the standard library, which every
machine that can run the script already has.

    python baselines/models/train_tiny_dense.py

takes about five minutes on two cores. The same seed, versions and thread count give the same bits; the
corpus, and with it the weights, changes with the Python release, so all of these are in `provenance.json`.
"""

import argparse
import hashlib
import json
import math
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 256
BATCH = 16
WARMUP_STEPS = 50
PEAK_LR = 3e-3
FINAL_LR_FRACTION = 0.05
WEIGHT_DECAY = 0.1
HELD_OUT_WINDOWS = 256

# Tests of the library are most of its bytes and least of its style; the code pages of `encodings` are tables;
# `_sysconfigdata*` is generated when Python is built and names paths of that machine.
SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "encodings",
    "idle_test",
    "lib-dynload",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
}
SKIPPED_PREFIX = "_sysconfigdata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The two halves of the text, as bytes, and how they came about."""

    train: Tensor
    held_out: Tensor
    train_files: int
    held_out_files: int
    sha256: str


def main() -> None:
    """Train, round to bfloat16, measure the held-out loss of what was rounded, and write the checkpoint."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "tiny-dense", help="checkpoint folder"
    )
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="part of what makes a run repeatable")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)

    corpus = read_corpus(Path(sysconfig.get_path("stdlib")))
    model = LlamaForCausalLM(tiny_config())
    print(f"{model.num_parameters():,} parameters, {len(corpus.train):,} bytes of {corpus.train_files} files")
    train(model, corpus.train, steps=args.steps, seed=args.seed)

    model = model.to(torch.bfloat16).eval()
    model.save_pretrained(args.out)
    (args.out / "generation_config.json").unlink(missing_ok=True)  # only defaults: bytes have no end token

    weights = args.out / "model.safetensors"
    provenance = {
        "made_by": f"baselines/models/{Path(__file__).name}",
        "license": "Weights: Apache-2.0. Trained on the Python standard library's sources (PSF-2.0 license).",
        "held_out_nats_per_byte": round(mean_loss(model, corpus.held_out), 4),
        "parameters": model.num_parameters(),
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "steps": args.steps,
        "seed": args.seed,
        "threads": args.threads,
        "batch": BATCH,
        "context": CONTEXT,
        "corpus": {
            "what": "standard library sources, without tests, code pages and generated tables",
            **{name: value for name, value in asdict(corpus).items() if not isinstance(value, Tensor)},
            "train_bytes": len(corpus.train),
            "held_out_bytes": len(corpus.held_out),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    (args.out / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    print(f"{args.out}: {provenance['held_out_nats_per_byte']} nats per byte held out")


def tiny_config() -> LlamaConfig:
    """Describe the model: grouped-query attention 8/4, every byte a token, head and embedding untied."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=256,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,  # all 256 values are text
        eos_token_id=None,
        pad_token_id=None,
    )


def read_corpus(stdlib: Path) -> Corpus:
    """Read the library's sources in the order of their names; one file in twenty, by hash, is held out."""
    halves: dict[bool, list[bytes]] = {False: [], True: []}
    for name, path in sorted(_sources(stdlib)):
        is_held_out = hashlib.sha256(name.encode()).digest()[0] % 20 == 0
        halves[is_held_out].append(path.read_bytes())
    train_bytes, held_out_bytes = b"".join(halves[False]), b"".join(halves[True])
    return Corpus(
        train=torch.frombuffer(bytearray(train_bytes), dtype=torch.uint8),
        held_out=torch.frombuffer(bytearray(held_out_bytes), dtype=torch.uint8),
        train_files=len(halves[False]),
        held_out_files=len(halves[True]),
        sha256=hashlib.sha256(train_bytes + held_out_bytes).hexdigest(),
    )


def train(model: LlamaForCausalLM, text: Tensor, *, steps: int, seed: int) -> None:
    """Run AdamW under a cosine schedule on windows drawn at random from `text`."""
    # Decay pulls a norm's gain to 0 and not to 1, so only matrices decay.
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": gains, "weight_decay": 0.0}],
        lr=PEAK_LR,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_fraction(step, steps))
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for step in range(steps):
        starts = torch.randint(len(text) - CONTEXT, (BATCH,), generator=generator)
        ids = torch.stack([text[start : start + CONTEXT] for start in starts.tolist()]).long()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}  {loss.item():.3f} nats per byte", flush=True)


@torch.no_grad()
def mean_loss(model: LlamaForCausalLM, text: Tensor) -> float:
    """Return the mean loss in nats per byte over windows spread evenly over `text`."""
    starts = torch.linspace(0, len(text) - CONTEXT, HELD_OUT_WINDOWS).long()
    windows = torch.stack([text[start : start + CONTEXT] for start in starts.tolist()]).long()
    losses = [model(input_ids=ids, labels=ids).loss.double() for ids in windows.split(BATCH)]
    return torch.stack(losses).mean().item()


def _sources(stdlib: Path) -> Iterator[tuple[str, Path]]:
    for path in stdlib.rglob("*.py"):
        relative = path.relative_to(stdlib)
        if not SKIPPED_FOLDERS.intersection(relative.parts) and not path.name.startswith(SKIPPED_PREFIX):
            yield relative.as_posix(), path


def _lr_fraction(step: int, steps: int) -> float:
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return FINAL_LR_FRACTION + (1 - FINAL_LR_FRACTION) * 0.5 * (1 + math.cos(math.pi * progress))


if __name__ == "__main__":
    main()
