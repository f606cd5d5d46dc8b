"""Adapters for training frameworks: Hugging Face's `Trainer`, Lightning and DeepXDE.

Each is a module of its own, which imports its framework: `paretograd.integrations.transformers`, `.lightning` and
`.deepxde`.
"""
