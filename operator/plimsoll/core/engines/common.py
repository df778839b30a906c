"""What most engines do alike: their table of flags decides, and flags say everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from plimsoll.core.engines.absorb import absorb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from plimsoll.core.engines.base import Pinned
    from plimsoll.core.engines.flags import FlagTable
    from plimsoll.core.request import SizingRequest


class Common:
    """The part of ``base.Engine`` that a table of flags answers. An engine replaces what is its own."""

    flags: ClassVar[FlagTable]
    pipelines: ClassVar[bool] = False

    def check_args(self, args: Sequence[str], env_names: Iterable[str] = ()) -> None:
        """See Engine."""
        self.flags.check(args, env_names)

    def absorb(self, request: SizingRequest) -> SizingRequest:
        """See Engine."""
        return absorb(self.flags, request)

    def pinned_env(self, pinned: Pinned, request: SizingRequest) -> dict[str, str]:
        """See Engine. Flags say everything."""
        del pinned, request
        return {}

    def argv(self, args: Sequence[str]) -> list[str]:
        """See Engine. argparse, clap and click take ``--flag=value``."""
        return list(args)
