"""Well-known GPUs: what NVML calls them, and how much memory CUDA and NVML see.

The two totals differ: NVML counts what the driver keeps for itself, CUDA does not. MiB, as printed by
``torch.cuda.get_device_properties`` (rounded down) and ``nvidia-smi`` in public logs and issues. The
CUDA figure moves by some MiB between drivers; where several were seen, the smallest stands here.
"""

from __future__ import annotations

from typing import Final

from plimsoll.core.errors import BadArgument
from plimsoll.core.records import dataclass
from plimsoll.core.units import MIB


@dataclass(frozen=True, slots=True)
class Gpu:
    """One row. Bytes.

    Attributes:
        name: Short name for ``--gpu``.
        product: Name as NVML gives it; engines choose defaults by it.
        total: Memory as CUDA sees it (T).
        nvml_total: Memory as NVML reports it.
        source: Where the CUDA figure comes from.
    """

    name: str
    product: str
    total: int
    nvml_total: int
    source: str


_TORCH: Final = "torch device properties in a public log"
_VLLM: Final = "total printed by vLLM at start, public log"

# name, product, CUDA MiB, NVML MiB, source
_ROWS: Final = (
    ("T4", "Tesla T4", 14930, 15360, _TORCH),
    ("A10G", "NVIDIA A10G", 22563, 23028, "22,723 MB by an older torch; the L4's figure is the smaller"),
    ("A10", "NVIDIA A10", 22563, 23028, "as the L4: same memory and error correction"),
    ("L4", "NVIDIA L4", 22563, 23034, _TORCH),
    ("RTX-A5000", "NVIDIA RTX A5000", 24138, 24564, _TORCH),
    ("RTX-3090", "NVIDIA GeForce RTX 3090", 24146, 24576, _VLLM),
    ("RTX-4090", "NVIDIA GeForce RTX 4090", 24081, 24564, _TORCH),
    ("RTX-5090", "NVIDIA GeForce RTX 5090", 32102, 32607, _TORCH),
    ("V100-32GB", "Tesla V100-SXM2-32GB", 32494, 32768, _TORCH),
    ("A100-40GB", "NVIDIA A100-SXM4-40GB", 40326, 40960, "deviceQuery in a public pull request"),
    ("A100-40GB-PCIe", "NVIDIA A100-PCIE-40GB", 40326, 40960, _TORCH),
    ("A40", "NVIDIA A40", 45416, 46068, _TORCH),
    ("L40", "NVIDIA L40", 45416, 46068, "as the A40: same NVML total"),
    ("L40S", "NVIDIA L40S", 45416, 46068, "45,589 MB by torch; the A40's figure is the smaller"),
    ("RTX-A6000", "NVIDIA RTX A6000", 48676, 49140, _TORCH),
    ("RTX-6000-Ada", "NVIDIA RTX 6000 Ada Generation", 48622, 49140, _TORCH),
    ("A100-80GB", "NVIDIA A100-SXM4-80GB", 81038, 81920, _TORCH),
    ("A100-80GB-PCIe", "NVIDIA A100 80GB PCIe", 81038, 81920, _TORCH),
    ("H100-80GB", "NVIDIA H100 80GB HBM3", 81080, 81559, _VLLM),
    ("H100-80GB-PCIe", "NVIDIA H100 PCIe", 81008, 81559, _TORCH),
    ("H100-NVL", "NVIDIA H100 NVL", 95320, 95830, _TORCH),
    ("H20", "NVIDIA H20", 97285, 97871, _TORCH),
    ("RTX-PRO-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97250, 97887, _TORCH),
    ("H200", "NVIDIA H200", 143155, 143771, _TORCH),
    ("H20-141GB", "NVIDIA H20-3e", 143073, 143771, _VLLM),
    ("B200", "NVIDIA B200", 182631, 183359, _TORCH),
)  # fmt: skip

#: From the smallest to the largest.
CATALOGUE: Final[tuple[Gpu, ...]] = tuple(
    Gpu(name, product, total * MIB, nvml * MIB, source)
    for name, product, total, nvml, source in sorted(_ROWS, key=lambda row: row[2])
)


def find_gpu(name: str) -> Gpu:
    """The row of that short name or product name, whatever its case.

    Raises:
        BadArgument: No such row; names the nearest ones.
    """
    wanted = name.casefold()
    for gpu in CATALOGUE:
        if wanted in {gpu.name.casefold(), gpu.product.casefold()}:
            return gpu
    from difflib import get_close_matches  # noqa: PLC0415 - 1 ms, and only refusals need it

    names = {gpu.name.casefold(): gpu.name for gpu in CATALOGUE}
    near = [names[match] for match in get_close_matches(wanted[:64], names, 3, 0.4)]
    known = f"; did you mean {', '.join(near)}?" if near else ""
    raise BadArgument(
        f"--gpu {name[:64]!r} is not in the catalogue{known} Known are {', '.join(names.values())}; "
        "or give --gpu-name, --gpu-total and --nvml-total",
        field="--gpu",
        value=name,
    )
