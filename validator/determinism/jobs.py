"""What the ranks of one launch are told to run, and the notes that they leave beside their captures."""

from dataclasses import dataclass
from pathlib import Path

from validator.capturing.reader import open_capture
from validator.determinism.variants import Variant
from validator.errors import ValidatorError
from validator.target import Target, load_target

__all__ = ["Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every rank is told.

    Attributes:
        source: the target's path.
        folder: where captures go, one a variant, by its name.
        variants: to run, in this order.
        device, dtype, tp: options of the candidate.
        site: fqn of the module where controls are planted; None to choose one, if there is any.
    """

    source: str
    folder: Path
    variants: tuple[Variant, ...]
    device: str | None = None
    dtype: str | None = None
    tp: int | None = None
    site: str | None = None

    def load(self) -> Target:
        """Load the target."""
        return load_target(self.source, device=self.device, dtype=self.dtype, tp=self.tp)

    def why_not(self, variant: Variant) -> str | None:
        """Return why no capture of a variant can be made, or None where no rank said so."""
        return _text(self._why_not(variant))

    def note_why_not(self, variant: Variant, why: str) -> None:
        """Say that no capture of a variant can be made."""
        self._why_not(variant).write_text(why, encoding="utf-8")

    def has_ended(self, variant: Variant) -> bool:
        """Tell whether a variant has left a capture, or the reason why there is none."""
        if self.why_not(variant) is not None:
            return True
        try:
            open_capture(self.folder / variant.name)
        except ValidatorError:
            return False
        return True

    @property
    def was_built(self) -> bool:
        """Whether the candidate was built on every rank."""
        return self._built.exists()

    def note_built(self) -> None:
        """Say that the candidate was built on every rank."""
        self._built.touch()

    @property
    def chosen_site(self) -> str | None:
        """Where controls are planted, once that is known."""
        return self.site if self.site is not None else _text(self._site)

    def note_site(self, site: str) -> None:
        """Say where controls are planted."""
        self._site.write_text(site, encoding="utf-8")

    def _why_not(self, variant: Variant) -> Path:
        return self.folder / f"{variant.name}.why"

    @property
    def _built(self) -> Path:
        return self.folder / "built"

    @property
    def _site(self) -> Path:
        return self.folder / "site"


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
