"""GENIE: what does this network do to my training job? See docs/architecture.md."""

__version__ = "0.1.0"
