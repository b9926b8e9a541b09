"""Durable sessions and checkpoints for AI agents."""
