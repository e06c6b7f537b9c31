"""Train `tiny-dense`, a Llama, or `tiny-moe`, a Qwen3-MoE, on bytes, so that tests have peaked, real logits.

A random model gives nearly flat logits, which hide the faults that matter: an argmax that flips, a softmax
that saturates, a token that goes to the wrong expert. These two read Python, learned from the sources of the
standard library, which every machine that can run the script already has.

    python baselines/models/train.py tiny-dense --threads 2

takes about five minutes on two cores, and `tiny-moe` about eleven on one. The same seed, versions and thread
count give the same bits; the corpus, and with it the weights, changes with the Python release, so all of
these are in `provenance.json`.
"""

import argparse
import hashlib
import json
import math
import platform
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

CONTEXT = 256
BATCH = 16
WARMUP_STEPS = 50
PEAK_LR = 3e-3
FINAL_LR_FRACTION = 0.05
WEIGHT_DECAY = 0.1
HELD_OUT_WINDOWS = 256

# What both models share. Four ranks divide the heads. Every byte is a token, so no id is left to begin, end
# or pad a text.
COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

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
    parser.add_argument("model", choices=sorted(CONFIGS))
    parser.add_argument("--out", type=Path, help="checkpoint folder; the default is the model's name, here")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="part of what makes a run repeatable")
    args = parser.parse_args()
    out: Path = args.out or Path(__file__).parent / args.model

    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)

    corpus = read_corpus(Path(sysconfig.get_path("stdlib")))
    model = AutoModelForCausalLM.from_config(CONFIGS[args.model]())
    print(f"{model.num_parameters():,} parameters, {len(corpus.train):,} bytes of {corpus.train_files} files")
    train(model, corpus.train, steps=args.steps, seed=args.seed)

    model = model.to(torch.bfloat16).eval()
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)  # only defaults: bytes have no end token

    weights = out / "model.safetensors"
    options = f"--steps {args.steps} --seed {args.seed} --threads {args.threads}"
    provenance = {
        "made_by": f"baselines/models/{Path(__file__).name} {args.model} {options}",
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
    (out / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    print(f"{out}: {provenance['held_out_nats_per_byte']} nats per byte held out")


def dense_config() -> LlamaConfig:
    """Describe `tiny-dense`: one MLP a layer."""
    return LlamaConfig(architectures=["LlamaForCausalLM"], **COMMON)


def moe_config() -> Qwen3MoeConfig:
    """Describe `tiny-moe`: two of eight experts a token, in every layer."""
    return Qwen3MoeConfig(
        architectures=["Qwen3MoeForCausalLM"],
        head_dim=32,  # as in Qwen3-MoE's releases, queries are twice as wide as the residual stream
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        router_aux_loss_coef=0.02,
        **COMMON,
    )


CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {"tiny-dense": dense_config, "tiny-moe": moe_config}


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


def train(model: PreTrainedModel, text: Tensor, *, steps: int, seed: int) -> None:
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
        loss, balance = training_losses(model, ids)
        (loss + balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}  {loss.item():.3f} nats per byte", flush=True)


def training_losses(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss in nats per byte, and what routers pay for experts of unequal load (dense: 0)."""
    config = model.config
    if not isinstance(config, Qwen3MoeConfig):
        return model(input_ids=ids, labels=ids).loss, torch.zeros(())
    # The causal model would add a balance of its own, pooled over the layers: one that starves an expert pays
    # nothing where another makes up for it. So the base model is asked, and each layer balanced by itself.
    routed = model.model(input_ids=ids, output_router_logits=True)
    loss = model.loss_function(model.lm_head(routed.last_hidden_state), ids, config.vocab_size)
    balances = [
        load_balancing_loss_func((logits,), config.num_experts, config.num_experts_per_tok)
        for logits in routed.router_logits
    ]
    return loss, config.router_aux_loss_coef * torch.stack(balances).mean()


@torch.no_grad()
def mean_loss(model: PreTrainedModel, text: Tensor) -> float:
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
