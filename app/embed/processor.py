"""What this processor can do for a local model: its arithmetic and its threads.

Invariant: what is chosen depends on processor and settings alone, so every process of a machine chooses the same.
"""

import os
from pathlib import Path
from typing import Final, Literal

from app.embed.embedder import Precision
from app.errors import StartupRefused

Arithmetic = Literal["float32", "bfloat16", "int8"]
MOST_THREADS: Final = 4
"""Half the cores and no more: threads of one matrix product wait for the slowest, and the service needs cores too."""


def threads_for(wanted: int | None) -> int:
    """Threads of a model, at least 1."""
    return wanted or min(max((os.cpu_count() or 1) // 2, 1), MOST_THREADS)


def arithmetic_for(wanted: Precision, flags: frozenset[str], *, torch: bool = False) -> Arithmetic:
    """The arithmetic for a processor with these flags, in CTranslate2 or in torch; reasons: decisions 0004 and 0019.

    In torch bfloat16 wins with AMX and loses to float32 with avx512_bf16 alone; int8 without VNNI saturates, so it is
    refused.
    """
    if wanted == "int8" and "avx512_vnni" not in flags:
        raise StartupRefused("MNEME_EMBED__PRECISION is int8, but this processor has no avx512_vnni")
    if wanted != "auto":
        return wanted
    if torch and "amx_bf16" in flags:
        return "bfloat16"
    return "int8" if "avx512_vnni" in flags else "float32"


def processor_flags() -> frozenset[str]:
    """The flags as Linux names them; empty where there is no /proc/cpuinfo."""
    cpuinfo = Path("/proc/cpuinfo")
    return frozenset(cpuinfo.read_text().split()) if cpuinfo.is_file() else frozenset()
