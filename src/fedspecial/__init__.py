"""Federated domain-incremental learning."""
