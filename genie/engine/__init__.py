"""The Python face of the native engine: program blobs in, event records out, and what to expect of a run."""
