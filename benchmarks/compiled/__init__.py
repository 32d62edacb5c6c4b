"""Compiled steps beside torch, torch.compile and JAX, in one run."""
