"""The OpenAI interface."""
