"""What the names of AITER's files say that their columns may not: types, scaling, shuffled weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from wavetune.core.element import find_element

_WIDTHS = re.compile(r"(?<![a-z0-9])a(\d+)w(\d+)(?![0-9])")
_BY_WIDTH = {4: "fp4", 6: "fp6", 8: "fp8"}
_OTHERS_BY_WIDTH = {"int4": 4, "int8": 8, "uint8": 8}


@dataclass(frozen=True, slots=True)
class FileTypes:
    """What a file's rows are where no column says it.

    Parameters
    ----------
    dtype, dtype_b : str
        Element types of A and B; the latter empty if they are the same.
    name : str
        Of folder and file, in lower case.
    note : str
        Where the types come from.
    """

    dtype: str
    dtype_b: str
    name: str
    note: str

    @classmethod
    def of(cls, path: str, dtype: str) -> FileTypes:
        """Read a name such as ``a8w8_blockscale_untuned_gemm.csv``, or ``a8w8_gemm_model_config/Llama.csv``.

        Parameters
        ----------
        path : str
            The file.
        dtype : str
            Of files that do not say. A name that says another width wins over it: what is called a8w8 is no bf16.

        Raises
        ------
        ProblemError
            If the element type is unknown.
        """
        wanted = find_element(dtype)
        pure = PurePath(path)
        name = f"{pure.parent.name}/{pure.name}".lower()
        # The file's own name counts before its folder's.
        widths = _WIDTHS.search(pure.name.lower()) or _WIDTHS.search(name)
        if widths is None:
            return cls(wanted, "", name, f"no column dtype: {wanted} is taken for granted")
        a, b = (_element(int(width), wanted) for width in widths.groups())
        return cls(a, "" if a == b else b, name, _note(widths[0], a, b))

    def scale(self, dtype: str, otherwise: str) -> str:
        """Return how operands of a type are scaled; nothing inside the files tells the kinds of scaling apart."""
        if width_of(dtype) > 8:
            return otherwise
        if width_of(dtype) < 8 or "mxfp" in self.name:
            return "block32"
        return "block128x128" if "blockscale" in self.name else "row"

    @property
    def is_shuffled(self) -> bool:
        """Whether B is stored pre-shuffled."""
        return "bpreshuffle" in self.name


def width_of(dtype: str) -> int:
    """Return the bits of an element, 16 for those of 16 and more."""
    if dtype in _OTHERS_BY_WIDTH:
        return _OTHERS_BY_WIDTH[dtype]
    return next((width for width, name in _BY_WIDTH.items() if dtype.startswith(name)), 16)


def _element(width: int, wanted: str) -> str:
    return wanted if width_of(wanted) == width else _BY_WIDTH.get(width, "bf16")


def _note(said: str, a: str, b: str) -> str:
    note = f"no column dtype: {a if a == b else f'{a} times {b}'}, as {said} in the name says"
    return note + ("; eight bits may be int8, too: --dtype int8, fp8 or fp8_e4m3fnuz says which" if "8" in said else "")
