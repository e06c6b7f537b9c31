"""How much a candidate is asked end to end, and what came of it.

Shape legend: B = prompts, P = their tokens, T = steps, N = tokens before a step.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from validator.errors import UsageError
from validator.long_context.shares import ALONE, Holders
from validator.scoring.choices import TextScore
from validator.scoring.distances import DistributionScore, PerplexityScore
from validator.scoring.samplers import SamplerScore
from validator.scoring.sampling import Sampling

__all__ = ["Plan", "Scores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is asked.

    Attributes:
        prompts: how many prompts, cut from the target's inputs.
        prompt_tokens: how long each is at most.
        steps: how many tokens are generated.
        sampling: how they are sampled, beside greedily.
        windows: how many windows of the text are read.
        window_tokens: how long each is at most.

    Raises:
        UsageError: a number is below 1.
    """

    prompts: int = 4
    prompt_tokens: int = 32
    steps: int = 16
    sampling: Sampling = field(default_factory=Sampling)
    windows: int = 4
    window_tokens: int = 96

    def __post_init__(self) -> None:
        for name in ("prompts", "prompt_tokens", "steps", "windows", "window_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a candidate generates and reads, judged.

    Attributes:
        prompts: `[B, P]` what was continued.
        texts: `[B, T]` what the reference made of them, greedily and sampled.
        choices: the candidate's choices along these texts, in the same order; empty where noise is not known.
        samplers: the port's own sampler, where it has one.
        generated: distributions along the texts, decoded token by token.
        read: distributions on the text that ships, read at once.
        perplexity: of that text.
        versus_baseline: distributions on what a stored run read, or None without one.
        holders: the candidate's ranks whose logits are judged, and those whose copies differ.
        noise_is_heavy: whether single choices may go far astray by noise, as behind a router.
        unjudged: why something was not judged.
        note: what is to be known of the text that is read, or None.
    """

    prompts: Tensor
    texts: tuple[Tensor, ...]
    choices: tuple[TextScore, ...] = ()
    samplers: tuple[SamplerScore, ...] = ()
    generated: DistributionScore | None = None
    read: DistributionScore | None = None
    perplexity: PerplexityScore | None = None
    versus_baseline: DistributionScore | None = None
    holders: Holders = ALONE
    noise_is_heavy: bool = False
    unjudged: tuple[str, ...] = ()
    note: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """All that noise does not explain, in sentences."""
        judged = (
            *self.choices,
            *self.samplers,
            self.generated,
            self.read,
            self.perplexity,
            self.versus_baseline,
        )
        ranks = () if self.holders.problem is None else (self.holders.problem,)
        return (*ranks, *(sentence for part in judged if part is not None for sentence in part.problems))

    def text_at_fault(self) -> Tensor | None:
        """Return `[1, N]` what was before the first choice that noise does not explain, or None."""
        for text, score in zip(self.texts, self.choices, strict=False):
            first = score.first_unexplained
            if first is not None:
                row = first.sequence
                return torch.cat((self.prompts[row], text[row, : first.step]))[None]
        return None
