"""Tests of the models on disk."""
