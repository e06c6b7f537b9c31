"""What a result says of the run that a capture is of."""

from collections.abc import Mapping
from typing import Any

from validator.capturing.manifest import Manifest, ProofStatus

__all__ = ["LOOKING_CHANGED", "manifest_metadata", "manifest_notes", "proof_reasons", "software_of"]

LOOKING_CHANGED = "looking changed the candidate's run"
"""How the reason begins of an outcome whose proof failed."""


def manifest_notes(manifest: Manifest) -> tuple[str, ...]:
    """Return what a reader must know of a candidate's capture."""
    planted = () if manifest.planted is None else (manifest.planted,)
    return (*planted, *_compiled_notes(manifest))


def manifest_metadata(manifest: Manifest) -> Mapping[str, Any]:
    """Return what a result says of the side that a capture is of."""
    proof = manifest.proof
    return {
        **manifest.run,
        "recipe": manifest.recipe,
        "proof": {"status": proof.status, "reason": proof.reason},
    }


def software_of(manifest: Manifest) -> dict[str, str]:
    """Return versions of the software of a run, by name."""
    software = manifest.run.get("software", {})
    return {str(name): str(version) for name, version in software.items() if isinstance(version, str)}


def proof_reasons(manifest: Manifest) -> tuple[str, ...]:
    """Return why a capture's values may not be those of the run that nobody looked at."""
    if manifest.proof.status is ProofStatus.CHANGED:
        return (f"{LOOKING_CHANGED}: {manifest.proof.reason}",)
    return ()


def _compiled_notes(manifest: Manifest) -> tuple[str, ...]:
    if not manifest.compiled:
        return ()
    named = [name or "the model itself" for name in manifest.compiled]
    shown = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    return (
        f"compiled: {sum(manifest.compiled.values())} modules inside {shown} were not looked into; what is "
        "compiled is judged as one function",
    )
