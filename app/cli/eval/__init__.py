"""`mneme eval`: retrieval quality over HTTP on labelled sets, beside single arms and rank fusion of the same run."""

from app.cli.eval.command import evaluate

__all__ = ["evaluate"]
