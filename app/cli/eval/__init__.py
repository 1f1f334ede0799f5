"""`mneme eval` measures retrieval over HTTP on labelled sets, `mneme eval-dedup` and `eval-conflict` labelled pairs."""

from app.cli.eval.command import evaluate
from app.cli.eval.judgement import evaluate_conflict, evaluate_dedup

__all__ = ["evaluate", "evaluate_conflict", "evaluate_dedup"]
