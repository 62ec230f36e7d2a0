"""Named CPU models by age and abilities, as libvirt and QEMU call them. Pure.

Node labels say which models a node can run, not which is better. Of two models of one vendor the
younger has more; the years say so (with fractions where two of one year differ: a server's model
after the client's, small cores before large). Of one generation the model with the speculation
controls (`-IBRS`, `-IBPB`) comes before the one without, the one with TSX before `-noTSX`, a later
version (`-v5`) before an earlier.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_GENERIC = (
    "486", "pentium", "pentium2", "pentium3", "pentiumpro", "coreduo", "n270", "athlon", "qemu32",
    "kvm32", "cpu64-rhel5", "cpu64-rhel6", "qemu64", "kvm64", "core2duo", "phenom",
)  # fmt: skip
_YEARS = {
    "Conroe": 2006, "Penryn": 2007, "Nehalem": 2008, "Westmere": 2010, "Denverton": 2010.1,
    "Snowridge": 2010.2, "SandyBridge": 2011, "IvyBridge": 2012, "Haswell": 2013,
    "Broadwell": 2014, "Skylake-Client": 2015, "Skylake-Server": 2017, "Cascadelake-Server": 2019,
    "Cooperlake": 2020, "Icelake-Client": 2019.5, "Icelake-Server": 2021, "SierraForest": 2022,
    "ClearwaterForest": 2022.5, "SapphireRapids": 2023, "GraniteRapids": 2024,
    "DiamondRapids": 2026,
    "Opteron_G1": 2003, "Opteron_G2": 2006, "Opteron_G3": 2007.5, "Opteron_G4": 2011.5,
    "Opteron_G5": 2012.5, "Dhyana": 2017.5, "EPYC": 2017.6, "EPYC-Rome": 2019.6,
    "EPYC-Milan": 2021.5, "EPYC-Genoa": 2022.8, "EPYC-Turin": 2024.5,
}  # fmt: skip
_FORM = re.compile(r"(?P<base>.+?)(?P<notsx>-noTSX)?(?P<safe>-IBRS|-IBPB)?(?:-v(?P<version>\d+))?")


def rank(model: str) -> tuple[float, bool, bool, int, str]:
    """What models are sorted by, the best last; a name that is not known is the youngest.

    Such a name is of a processor that came after this list, or no x86's.
    """
    found = _FORM.fullmatch(model)
    assert found is not None
    base = found["base"]
    year = float(_GENERIC.index(base)) if base in _GENERIC else _YEARS.get(base, 9999.0)
    version = int(found["version"] or 0)
    return year, found["safe"] is not None, found["notsx"] is None, version, model


def best_first(models: Iterable[str]) -> list[str]:
    """Names, the best first."""
    return sorted(models, key=rank, reverse=True)
