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
    """The arithmetic for a processor with these flags, in CTranslate2 or in torch; reasons: decisions 0004, 0019, 0034.

    In torch bfloat16 wins with AMX and loses to float32 with avx512_bf16 alone, and int8 without VNNI saturates, so it
    is refused. In CTranslate2 it saturates so seldom that vectors stay what they are.
    """
    vnni = "avx512_vnni" in flags
    if wanted == "int8" and not vnni and torch:
        raise StartupRefused("MNEME_EMBED__PRECISION is int8, but in torch this processor needs avx512_vnni for it")
    if wanted != "auto":
        return wanted
    if torch and "amx_bf16" in flags:
        return "bfloat16"
    return "int8" if vnni or (not torch and has_narrow_int8(flags)) else "float32"


def has_narrow_int8(flags: frozenset[str]) -> bool:
    """Whether int8 pays in CTranslate2 though there is no VNNI: with AVX2 alone, by oneDNN."""
    return "avx2" in flags and "avx512f" not in flags


def processor_flags() -> frozenset[str]:
    """The flags as Linux names them; empty where there is no /proc/cpuinfo."""
    cpuinfo = Path("/proc/cpuinfo")
    return frozenset(cpuinfo.read_text().split()) if cpuinfo.is_file() else frozenset()
