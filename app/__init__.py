"""Mneme: the long-term memory of AI agents."""

import os

# Before numpy is loaded: its products here are small, and BLAS threads would spin on the cores of model and PostgreSQL.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
