"""The jobs of ``dspipeline``, a module each."""
