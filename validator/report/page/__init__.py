"""An outcome as one self-contained HTML page."""
